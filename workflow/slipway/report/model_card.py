"""The Hugging Face model card: metadata that the hub understands, then prose.

The metadata is made and checked by huggingface_hub; its results follow
https://github.com/huggingface/hub-docs/blob/main/modelcard.md.
"""

from collections.abc import Mapping
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from slipway.config.schema import Data, Evaluation
from slipway.models.source import is_hub_name
from slipway.report.settings_view import RunSettings
from slipway.report.summaries import cost, judged_step, results_table


def model_card(figures: Mapping[str, Any], settings: RunSettings) -> str:
    """Return the card of a run's trained model, from the figures of its metrics.json."""
    model, data = settings.model, settings.data
    base = model.path or "a small Qwen2-architecture model made by Slipway"
    trained_on = ", ".join(
        f"{data[settings.run.data].task}/{source.name}" for source in data[settings.run.data].sources
    )
    metadata = ModelCardData(
        model_name=figures["run"],
        base_model=model.path if model.path and is_hub_name(model.path) else None,
        datasets=_hub_sets(data[settings.run.data]) or None,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["grpo", "verl", "megatron-core", "slipway"],
        metrics=["accuracy"],
        eval_results=[
            _result(name, row, settings.evaluations[name], data[settings.evaluations[name].data])
            for name, row in figures["evaluations"].items()
        ],
    )
    body = [
        f"# {figures['run']}",
        "",
        f"GRPO-trained from {base} on {trained_on}: {figures['steps']} steps, {cost(figures)}.",
        "",
        "## Evaluation",
        "",
        *results_table(figures),
        "",
        *_of_step(figures),
        f"Verdict: {figures['verdict']}. Intervals are 95 %; base and trained model answered the same "
        "held-out questions, which share none with the training data.",
        "",
        "## Limits",
        "",
        "Trained and evaluated on this task alone; nothing is known about other uses.",
        "",
    ]
    return "\n".join(["---", metadata.to_yaml(), "---", "", *body])


def _of_step(figures: Mapping[str, Any]) -> list[str]:
    """Say which model the figures are of where it is not that of the last step."""
    step = judged_step(figures)
    if step is None or step == figures["steps"]:
        return []
    select_on = figures["checkpoints"]["select_on"]
    return [f"The figures are of step {step}, selected on {select_on}: the model in `model-step-{step}`.", ""]


def _result(name: str, row: Mapping[str, Any], evaluation: Evaluation, data: Data) -> EvalResult:
    hub_sets = _hub_sets(data)
    return EvalResult(
        task_type="text-generation",
        dataset_name=name,
        dataset_type=hub_sets[0] if len(hub_sets) == 1 else data.task,
        dataset_split="held-out",
        metric_type="accuracy",
        metric_name="Accuracy",
        metric_value=round(row["final_accuracy"], 6),
        metric_args={
            "confidence_interval_95": [round(end, 6) for end in row["final_accuracy_ci95"]],
            "base_model_accuracy": round(row["base_accuracy"], 6),
            "questions": row["questions"],
            "samples_per_question": row["samples_per_question"],
            "temperature": evaluation.temperature,
        },
    )


def _hub_sets(data: Data) -> list[str]:
    return [source.path for source in data.sources if source.path is not None and is_hub_name(source.path)]
