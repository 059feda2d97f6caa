# Problems from their sources to splits that are trained and evaluated on.


# Expects: a `data` entry of the config, and the held-out problems of the others that are evaluated on. Produces: train,
# held-out and warm-up problems as parquet, what was left out and why, with the reward tried on them. Runs on: CPUs.
rule prepare_data:
    input:
        heldout_of_others,
    output:
        "results/data/{data}/manifest.json",
    log:
        "results/data/{data}/logs/prepare_data.log",
    benchmark:
        "results/data/{data}/benchmarks/prepare_data.tsv"
    conda:
        "../../envs/cpu.yaml"
    threads: 2
    resources:
        mem_mb=growing(4000),
        runtime=growing(60),
    params:
        settings=data_settings,
    message:
        "prepare_data {wildcards.data}: read, filter, split, and try the reward"
    shell:
        'python -P scripts/prepare_data.py "$SLIPWAY_CONFIG" {wildcards.data:q} --processes {threads} --log {log:q}'


# Expects: a `data` entry of the config. Produces: its held-out problems alone, so that two data sets can each be
# compared with the other's. Runs on: CPUs; only where another data set is decontaminated against this one.
rule hold_out:
    output:
        "results/data/{data}/heldout/manifest.json",
    log:
        "results/data/{data}/logs/hold_out.log",
    benchmark:
        "results/data/{data}/benchmarks/hold_out.tsv"
    conda:
        "../../envs/cpu.yaml"
    threads: 2
    resources:
        mem_mb=growing(4000),
        runtime=growing(60),
    params:
        settings=data_settings,
    message:
        "hold_out {wildcards.data}: choose its held-out problems, for others to be compared with"
    shell:
        'python -P scripts/hold_out.py "$SLIPWAY_CONFIG" {wildcards.data:q} --processes {threads} --log {log:q}'
