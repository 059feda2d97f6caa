"""Problems from reasoning-gym, made from the user's settings."""

import dataclasses
import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import reasoning_gym.factory
from blake3 import blake3
from pydantic import TypeAdapter, ValidationError
from reasoning_gym.dataset import ProceduralDataset

from slipway.errors import SlipwayError

# Set by Slipway, not by the user's `parameters`.
_OURS = {"seed": "data.<name>.seed", "size": "data.<name>.train, heldout and warmup"}


@dataclass(frozen=True)
class Problem:
    """One problem: `index` is its place in the generator, `metadata` what the dataset's scorer may need."""

    index: int
    question: str
    answer: str
    metadata: dict[str, Any]

    @property
    def question_id(self) -> str:
        """Digest of the question: equal questions have equal ids, whatever made them."""
        return blake3(self.question.encode()).hexdigest(length=8)


def open_dataset(name: str, parameters: dict[str, Any], seed: int, size: int) -> ProceduralDataset:
    """Make the generator of `size` problems; it makes each only when asked for.

    Raises `SlipwayError` as `check_settings` does.
    """
    check_settings(name, parameters)
    return reasoning_gym.create_dataset(name, seed=seed, size=size, **parameters)


def check_settings(name: str, parameters: dict[str, Any]) -> None:
    """Raise `SlipwayError` for an unknown dataset and for parameters that the dataset does not take."""
    if name not in reasoning_gym.factory.DATASETS:
        raise SlipwayError(
            f"dataset: reasoning-gym has no dataset {name!r}{_nearest(name, reasoning_gym.factory.DATASETS)}"
        )
    _check_parameters(name, parameters)


def category(dataset: ProceduralDataset) -> str:
    """Return reasoning-gym's own group of the dataset, e.g. `arithmetic`."""
    return str(dataset.category)


def generate(dataset: ProceduralDataset) -> Iterator[Problem]:
    """Yield the dataset's problems one by one; an answer that is no text becomes an empty one."""
    for index in range(len(dataset)):
        made = dataset[index]
        answer = made["answer"]
        yield Problem(index, made["question"], answer if isinstance(answer, str) else "", made["metadata"])


def _check_parameters(name: str, parameters: dict[str, Any]) -> None:
    config_class = reasoning_gym.factory.DATASETS[name][1]
    known = [field.name for field in dataclasses.fields(config_class) if field.name not in _OURS]
    for key, value in parameters.items():
        if key in _OURS:
            raise SlipwayError(f"parameters.{key}: {value!r} is not set here but by {_OURS[key]}")
        if key not in known:
            raise SlipwayError(
                f"parameters.{key}: dataset {name} has no such parameter{_nearest(key, known)}; it has "
                + ", ".join(known)
            )
    try:
        # JSON, because YAML's lists are then accepted for tuples, but no text for a number
        TypeAdapter(config_class).validate_json(json.dumps(parameters), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise SlipwayError(f"parameters.{key}: {first['input']!r}: {first['msg']} (dataset {name})") from None
    try:
        _validate(config_class, parameters)
    except Exception as error:  # each dataset raises what it likes
        guilty = _guilty(config_class, parameters)
        shown = ", ".join(f"{key}: {parameters[key]!r}" for key in guilty) or "none given"
        raise SlipwayError(f"parameters of dataset {name}: {shown}: {error}") from None


def _validate(config_class: type, parameters: dict[str, Any]) -> None:
    config = config_class(**parameters)
    if hasattr(config, "validate"):  # some of reasoning-gym's have nothing to check
        config.validate()


def _guilty(config_class: type, parameters: dict[str, Any]) -> list[str]:
    """Return the keys without which the others are valid; all keys when no single one is at fault."""
    guilty = []
    for key in parameters:
        try:
            _validate(config_class, {other: value for other, value in parameters.items() if other != key})
        except Exception:
            continue
        guilty.append(key)
    return guilty or list(parameters)


def _nearest(word: str, known: Any) -> str:
    near = difflib.get_close_matches(word, list(known), n=3, cutoff=0.5)
    return f"; nearest: {', '.join(near)}" if near else ""
