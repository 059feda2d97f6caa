"""The held-out questions of a data set."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from slipway.errors import SlipwayError
from slipway.manifest import atomic_path, fingerprint

# A property of the questions is a grouping when it sorts them into so few groups.
MOST_GROUPS = 12

COLUMNS = ("data_source", "prompt", "reward_model", "extra_info")


@dataclass(frozen=True)
class Question:
    """One problem: what to ask, and what the scorer needs. `messages` is a chat of {role, content}."""

    question_id: str
    messages: list[dict[str, str]]
    data_source: str
    ground_truth: str
    extra_info: dict[str, Any]

    def with_reward(self, reward: str) -> "Question":
        """Return the question as other reward settings (the JSON text that rows carry) score it."""
        return replace(self, extra_info=self.extra_info | {"reward": reward})


def read_questions(path: Path, limit: int | None = None, skip: int = 0) -> list[Question]:
    """Read `limit` questions (None: all) after the first `skip` of a parquet file in verl's format, in its order.

    Raises `SlipwayError` when the file is missing, has fewer questions than that, or asks one twice.
    """
    if not path.is_file():
        raise SlipwayError(f"{path}: missing; rule prepare_data writes it")
    table = pd.read_parquet(path)
    absent = [column for column in COLUMNS if column not in table]
    if absent:
        raise SlipwayError(f"{path}: has no column {', '.join(absent)}; expected verl's format")
    available = len(table) - skip
    if available < (limit or 1):
        after = f" after the {skip} that it skips" if skip else ""
        raise SlipwayError(
            f"{path}: holds {len(table)} questions, the evaluation asks for {limit or 'at least one'}{after}; lower "
            f"its `questions`{' or `skip_questions`' if skip else ''}, or raise `heldout` of the data set"
        )
    questions = [_question(row) for row in table[skip:].head(limit or available).to_dict("records")]
    if len({question.question_id for question in questions}) < len(questions):
        raise SlipwayError(f"{path}: the same question_id occurs more than once; prepare the data again")
    return questions


def write_questions(path: Path, questions: Iterable[Question]) -> None:
    """Write one JSON object a line, atomically: what `read_kept_questions` reads."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(_kept(question), ensure_ascii=False) + "\n" for question in questions)


def read_kept_questions(path: Path) -> list[Question]:
    """Read what `write_questions` wrote; raises `SlipwayError` when the file is missing or damaged."""
    try:
        return [Question(**json.loads(line)) for line in path.read_text(encoding="utf-8").split("\n") if line]
    except FileNotFoundError:
        raise SlipwayError(f"{path}: missing; rule evaluate writes it") from None
    except (ValueError, TypeError) as error:
        raise SlipwayError(f"{path}: damaged ({error}); run rule evaluate again") from None


def questions_digest(questions: Iterable[Question]) -> str:
    """Return a digest of what is asked and of how answers are scored, in this order; files do not matter."""
    return fingerprint([_kept(question) for question in questions])


def problems_digest(questions: Iterable[Question]) -> str:
    """Return a digest of what is asked and what is right, in this order; other reward settings do not change it."""
    return questions_digest(question.with_reward("") for question in questions)


# Of `extra_info` what scoring reads; the rest says where in its source a problem was.
_SCORED_BY = ("question_id", "entry", "reward")


def _kept(question: Question) -> dict[str, Any]:
    return asdict(question) | {"extra_info": {key: question.extra_info[key] for key in _SCORED_BY}}


def _question(row: dict[str, Any]) -> Question:
    return Question(
        question_id=str(row["extra_info"]["question_id"]),
        messages=[dict(message) for message in row["prompt"]],
        data_source=str(row["data_source"]),
        ground_truth=str(row["reward_model"]["ground_truth"]),
        extra_info=dict(row["extra_info"]),
    )


def group_questions(questions: Sequence[Question]) -> dict[str, list[str]]:
    """Return the groups that each question belongs to, in the order of `questions`, by the property that makes them.

    Properties are the data source, difficulty and category where the source's columns give them, and what the task
    says of a question in single values, such as its number of terms; those that are the same for all, or of which
    there are more than `MOST_GROUPS`, are left out.
    """
    described = [_properties(question) for question in questions]
    names = dict.fromkeys(name for properties in described for name in properties)
    groups = {name: [properties.get(name, "none") for properties in described] for name in names}
    return {name: values for name, values in groups.items() if 1 < len(set(values)) <= MOST_GROUPS}


def _properties(question: Question) -> dict[str, str]:
    entry = json.loads(question.extra_info["entry"])
    metadata = entry["metadata"]
    if isinstance(metadata.get("metadata"), dict):  # reasoning-gym's own, in that of its task
        metadata = metadata["metadata"]
    single = {name: str(value) for name, value in metadata.items() if isinstance(value, str | int | float)}
    return {"source": question.data_source, **single, **entry.get("labels", {})}
