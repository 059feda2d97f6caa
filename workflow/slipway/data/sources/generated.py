"""Problems that reasoning-gym generates, by the name of its dataset."""

import dataclasses
import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import reasoning_gym.factory
from pydantic import TypeAdapter, ValidationError
from reasoning_gym.dataset import ProceduralDataset

from slipway.data.sources.base import Block
from slipway.errors import SlipwayError

PROBLEMS_OF_A_BLOCK = 256

# Set by Slipway, not by the user's `parameters`.
_OURS = {"seed": "data.<name>.seed", "size": "data.<name>.train, heldout and warmup"}


@dataclass(frozen=True)
class GeneratedSource:
    """A generator of at most `size` problems; each depends on the seed and its number alone."""

    dataset: str
    parameters: dict[str, Any]
    seed: int
    size: int
    unit: str = "problem"

    def __post_init__(self) -> None:
        """Raise `SlipwayError` as `check_settings` does."""
        check_settings(self.dataset, self.parameters)

    @property
    def ability(self) -> str:
        """reasoning-gym's own group of the dataset, e.g. `arithmetic`."""
        return str(self._generator().category)

    def blocks(self, start: int = 0, count: int = 0) -> list[Block]:
        """Return blocks of the `count` problems from `start` on."""
        stop = min(start + count, self.size)
        return [
            Block(self.dataset, first, min(first + PROBLEMS_OF_A_BLOCK, stop), first)
            for first in range(start, stop, PROBLEMS_OF_A_BLOCK)
        ]

    def read(self, block: Block) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield number and problem."""
        generator = self._generator()
        for index in range(block.start, block.stop):
            made = generator[index]
            yield (
                index,
                {
                    "question": made["question"],
                    "answer": made["answer"],
                    "dataset": self.dataset,
                    "parameters": self.parameters,
                    "metadata": made["metadata"],
                },
            )

    def identity(self) -> dict[str, Any]:
        """Return the version of the generator's code."""
        return {"reasoning-gym": version("reasoning-gym")}

    def _generator(self) -> ProceduralDataset:
        return _generator(self.dataset, json.dumps(self.parameters), self.seed, self.size)


@lru_cache(maxsize=8)
def _generator(dataset: str, parameters: str, seed: int, size: int) -> ProceduralDataset:
    # it makes each problem only when asked for, but some prepare a little for each of `size`
    return reasoning_gym.create_dataset(dataset, seed=seed, size=size, **json.loads(parameters))


def check_settings(name: str, parameters: dict[str, Any]) -> None:
    """Raise `SlipwayError` for an unknown dataset and for parameters that the dataset does not take."""
    if name not in reasoning_gym.factory.DATASETS:
        raise SlipwayError(
            f"dataset: reasoning-gym has no dataset {name!r}{_nearest(name, reasoning_gym.factory.DATASETS)}"
        )
    _check_parameters(name, parameters)


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
