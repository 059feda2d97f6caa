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
        runtime=lambda wildcards: run_of(wildcards).runtime_minutes,
        training=1,
        nodes=lambda wildcards: run_of(wildcards).nodes,
        gpus_per_node=lambda wildcards: run_of(wildcards).gpus_per_node,
        # local: a process of this machine; slurm: a job of its own, which profiles/slurm asks for
        executor="local",
    message:
        "train {wildcards.run}: GRPO by verl and Megatron-core on {resources.nodes} x {resources.gpus_per_node} GPUs"
        " (CPU: processes), {resources.runtime} minutes a job"
    shell:
        'python -P scripts/train.py "$SLIPWAY_CONFIG" {wildcards.run:q} --executor {resources.executor} --log {log:q}'
