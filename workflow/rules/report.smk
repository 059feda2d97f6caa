# What people read.


# Expects: training, evaluations of base, last and earlier steps, preflight. Produces: one offline page, metrics.json, summary.md. Runs on: one CPU.
rule report:
    input:
        train="results/{run}/train/manifest.json",
        model="results/{run}/model/manifest.json",
        base="results/{run}/eval/base.json",
        final="results/{run}/eval/final.json",
        earlier_models=earlier_models,
        earlier=earlier_evaluations,
        preflight="results/{run}/preflight.json",
        # what the page says of where everything came from
        data=run_data,
        heldout=evaluated_data,
        source=run_source,
        converted=run_model,
    output:
        page=report(
            "results/{run}/report.html",
            caption="../report/run.rst",
            category="Runs",
            labels={"run": "{run}", "content": "report"},
        ),
        metrics=report(
            "results/{run}/metrics.json",
            caption="../report/figures.rst",
            category="Runs",
            labels={"run": "{run}", "content": "figures"},
        ),
    log:
        "results/{run}/logs/report.log",
    benchmark:
        "results/{run}/benchmarks/report.tsv"
    conda:
        "../../envs/cpu.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        settings=report_settings,
    message:
        "report {wildcards.run}: results/{wildcards.run}/report.html"
    shell:
        'python -P scripts/report.py "$SLIPWAY_CONFIG" {wildcards.run:q} --log {log:q}'


# Expects: every run's figures. Produces: all runs side by side. Runs on: one CPU.
rule compare:
    input:
        expand("results/{run}/metrics.json", run=CONFIG.runs),
    output:
        report(
            "results/compare.html",
            caption="../report/compare.rst",
            category="Comparison",
            labels={"run": "all", "content": "comparison"},
        ),
    log:
        "results/compare.log",
    benchmark:
        "results/compare.tsv"
    conda:
        "../../envs/cpu.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    message:
        "compare: results/compare.html"
    shell:
        'python -P scripts/compare.py "$SLIPWAY_CONFIG" --log {log:q}'
