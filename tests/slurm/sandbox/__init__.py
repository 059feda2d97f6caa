"""A SLURM cluster on one machine, to test against and to try the workflow on. `python tests/slurm/sandbox --help`."""
