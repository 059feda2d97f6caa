# Expects: the resolved verl config (written by the main process), prepared data, converted model. Produces: findings;
# preflight.json only when none of them is an error. Runs on: one CPU.
rule preflight:
    input:
        verl="results/{run}/verl.yaml",
        data=run_data,
        heldout=evaluated_data,
        model=run_model,
    output:
        "results/{run}/preflight.json",
    log:
        "results/{run}/logs/preflight.log",
    benchmark:
        "results/{run}/benchmarks/preflight.tsv"
    conda:
        "../../envs/cpu.yaml"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=30,
    message:
        "preflight {wildcards.run}: verl's own validation, layout, batches, lengths, tokenizer, reward"
    shell:
        'python -P scripts/preflight.py "$SLIPWAY_CONFIG" {wildcards.run:q} --log {log:q}'
