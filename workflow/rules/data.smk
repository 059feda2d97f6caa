# Expects: a `data` entry of the config. Produces: train, held-out and warm-up problems as parquet, with the reward
# tried on them. Runs on: one CPU.
rule prepare_data:
    output:
        "results/data/{data}/manifest.json",
    log:
        "results/data/{data}/logs/prepare_data.log",
    benchmark:
        "results/data/{data}/benchmarks/prepare_data.tsv"
    conda:
        "../../envs/cpu.yaml"
    threads: 1
    resources:
        mem_mb=growing(4000),
        runtime=growing(60),
    params:
        settings=data_settings,
    message:
        "prepare_data {wildcards.data}: generate, filter, split, and try the reward"
    shell:
        'python -P scripts/prepare_data.py "$SLIPWAY_CONFIG" {wildcards.data:q} --log {log:q}'
