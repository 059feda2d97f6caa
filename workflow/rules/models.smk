# Models in and out of Megatron-core.


# Expects: the warm-up problems of the recipe's data set. Produces: the demo's small model, warm-started, in Hugging
# Face format. Runs on: one CPU.
rule make_demo_model:
    input:
        lambda wildcards: RESULTS.data(CONFIG.models[wildcards.model].demo.data)
        / "manifest.json",
    output:
        "results/models/{model}/hf/manifest.json",
    log:
        "results/models/{model}/logs/make_demo_model.log",
    benchmark:
        "results/models/{model}/benchmarks/make_demo_model.tsv"
    conda:
        "../../envs/cpu.yaml"
    # two threads: a third faster than one; more give so small a model nothing
    threads: 2
    resources:
        mem_mb=growing(4000),
        runtime=growing(60),
    params:
        settings=model_settings,
    message:
        "make_demo_model {wildcards.model}: build the model and warm-start it by supervised training"
    shell:
        'python -P scripts/make_demo_model.py "$SLIPWAY_CONFIG" {wildcards.model:q} --log {log:q}'


# Expects: a Hugging Face checkpoint. Produces: the same weights as a Megatron torch_dist checkpoint, compared tensor by
# tensor. Runs on: CPUs; memory does not grow with the model.
rule convert_megatron:
    input:
        model_source,
    output:
        "results/models/{model}/megatron/manifest.json",
    log:
        "results/models/{model}/logs/convert_megatron.log",
    benchmark:
        "results/models/{model}/benchmarks/convert_megatron.tsv"
    conda:
        "../../envs/cpu.yaml"
    threads: 2
    resources:
        mem_mb=growing(8000),
        runtime=growing(240),
    params:
        settings=model_settings,
    message:
        "convert_megatron {wildcards.model}: Hugging Face to Megatron, and compare every tensor"
    shell:
        'python -P scripts/convert_megatron.py "$SLIPWAY_CONFIG" {wildcards.model:q} --log {log:q}'


# Expects: a finished training. Produces: its last checkpoint in Hugging Face format. Runs on: CPUs.
rule export_hf:
    input:
        "results/{run}/train/manifest.json",
    output:
        "results/{run}/model/manifest.json",
    log:
        "results/{run}/logs/export_hf.log",
    benchmark:
        "results/{run}/benchmarks/export_hf.tsv"
    conda:
        "../../envs/cpu.yaml"
    threads: 2
    resources:
        mem_mb=growing(8000),
        runtime=growing(240),
    params:
        checkpoint="final",
    message:
        "export_hf {wildcards.run} ({params.checkpoint}): trained Megatron weights to Hugging Face"
    shell:
        'python -P scripts/export_hf.py "$SLIPWAY_CONFIG" {wildcards.run:q} {params.checkpoint:q} --log {log:q}'


# Expects: a finished training that kept the checkpoint. Produces: an earlier step's model in Hugging Face format. Runs
# on: CPUs; only where the run's `checkpoints` ask for it.
use rule export_hf as export_step with:
    output:
        "results/{run}/model-step-{step}/manifest.json",
    log:
        "results/{run}/logs/export_step-{step}.log",
    benchmark:
        "results/{run}/benchmarks/export_step-{step}.tsv"
    params:
        checkpoint="step-{step}",
    message:
        "export_step {wildcards.run} ({params.checkpoint}): trained Megatron weights to Hugging Face"
