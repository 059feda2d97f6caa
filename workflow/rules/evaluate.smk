# Expects: the base, the trained model or that of an earlier step, and held-out problems. Produces: accuracy with its interval, and every answer.
# Runs on: the run's device.
rule evaluate:
    input:
        model=evaluated_model,
        data=evaluated_data,
    output:
        "results/{run}/eval/{which}.json",
    log:
        "results/{run}/logs/evaluate-{which}.log",
    benchmark:
        "results/{run}/benchmarks/evaluate-{which}.tsv"
    conda:
        "../../envs/cpu.yaml"
    threads: 2
    resources:
        mem_mb=growing(4000),
        runtime=growing(240),
    params:
        settings=evaluation_settings,
    message:
        "evaluate {wildcards.run} ({wildcards.which}): generate and score answers to held-out problems"
    shell:
        'python -P scripts/evaluate.py "$SLIPWAY_CONFIG" {wildcards.run:q} {wildcards.which:q} --log {log:q}'
