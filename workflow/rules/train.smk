# Expects: a run that has passed preflight. Produces: the manifest of the trained checkpoint; checkpoints, metrics and
# logs stay in results/{run}/train, which Snakemake does not know. Runs: a local launcher; the training is its own job.
localrules:
    train,


rule train:
    input:
        preflight="results/{run}/preflight.json",
        verl="results/{run}/verl.yaml",
        data=run_data,
        model=run_model,
    output:
        "results/{run}/train/manifest.json",
    log:
        "results/{run}/logs/train.log",
    benchmark:
        "results/{run}/benchmarks/train.tsv"
    conda:
        "../../envs/cpu.yaml"
    threads: 1
    resources:
        mem_mb=10000,
        runtime=lambda wildcards: CONFIG.runs[wildcards.run].runtime_minutes,
        training=1,
    message:
        "train {wildcards.run}: GRPO by verl and Megatron-core"
    shell:
        'python -P scripts/train.py "$SLIPWAY_CONFIG" {wildcards.run:q} --log {log:q}'
