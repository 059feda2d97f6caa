"""Slipway: GRPO post-training on SLURM, from a Hugging Face checkpoint to a report that can be reproduced.

One sub-package a responsibility ("room"); rooms meet in files. Every room may use `config`, `manifest` and
`models`; whatever scores uses `rewards`; beyond that no room imports another. Nothing here imports Snakemake.
"""

__version__ = "0.1.0"
