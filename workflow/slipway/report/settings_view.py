"""A run's settings, as the page's tables and as a config that repeats the run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipway.config.load import named
from slipway.config.schema import Config, Data, Evaluation, Model, Run


@dataclass(frozen=True)
class RunSettings:
    """A run's part of the config: its own section, and the sections it names."""

    name: str
    run: Run
    model: Model
    data: Mapping[str, Data]
    evaluations: Mapping[str, Evaluation]


def settings_of(config: Config, name: str) -> RunSettings:
    """Return the sections of the config that a run names."""
    settings = named(config.runs, "runs", name)
    evaluations = {item: config.evaluation[item] for item in settings.evaluation}
    data = dict.fromkeys([settings.data, *(evaluation.data for evaluation in evaluations.values())])
    return RunSettings(
        name=name,
        run=settings,
        model=config.models[settings.model],
        data={item: config.data[item] for item in data},
        evaluations=evaluations,
    )


def as_config(settings: RunSettings) -> dict[str, Any]:
    """Return the config of this run alone, every default written out: laid over config.yaml it gives the run again."""
    return {
        "models": {settings.run.model: settings.model.model_dump()},
        "data": {name: data.model_dump() for name, data in settings.data.items()},
        "evaluation": {name: evaluation.model_dump() for name, evaluation in settings.evaluations.items()},
        "runs": {settings.name: settings.run.model_dump()},
    }


def settings_tables(settings: RunSettings) -> dict[str, dict[str, object]]:
    """Return the settings by heading, without those that are not set."""
    sections = {
        "Run": flat(settings.run.model_dump(exclude={"grpo", "verl"})),
        "GRPO": flat(settings.run.grpo.model_dump()),
        f"Model {settings.run.model}": flat(settings.model.model_dump()),
    }
    if settings.run.verl:
        sections["Further keys of verl"] = flat(settings.run.verl)
    for name, data in settings.data.items():
        sections[f"Data {name}"] = flat(data.model_dump())
    for name, evaluation in settings.evaluations.items():
        sections[f"Evaluation {name}"] = flat(evaluation.model_dump())
    return sections


def comparable(settings: RunSettings) -> dict[str, object]:
    """Return a run's settings with dotted names, and those of its model, data and evaluations by the part they play.

    Two runs that name different data of equal settings differ in nothing but the name.
    """
    return flat(
        settings.run.model_dump()
        | {
            "model settings": settings.model.model_dump(),
            "training data": settings.data[settings.run.data].model_dump(),
            "evaluations": {
                name: evaluation.model_dump() | {"data settings": settings.data[evaluation.data].model_dump()}
                for name, evaluation in settings.evaluations.items()
            },
        }
    )


def flat(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return nested settings with dotted names, lists as text, and without those that are null or empty."""
    result: dict[str, object] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{prefix}{key}.")
        elif value is not None and value != "":
            result[f"{prefix}{key}"] = ", ".join(map(str, value)) if isinstance(value, list) else value
    return result
