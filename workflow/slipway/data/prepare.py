"""Stage prepare_data: generate, filter, deduplicate, split, check, write."""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from slipway.config.schema import Data
from slipway.data.canary import check_rewards
from slipway.data.problems import Problem, category, generate, open_dataset
from slipway.data.splits import check_splits, split
from slipway.errors import SlipwayError
from slipway.manifest import Manifest, atomic_path, open_product, read_manifest, write_text
from slipway.rewards import reward_text, score

STAGE = "prepare_data"
VERSION = 2

# Generators repeat themselves. A task is exhausted when so many problems in a row, or as many as there are
# distinct ones already, brought nothing new.
PATIENCE = 2000
MAX_GENERATED_PER_PROBLEM = 50

SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        (
            "extra_info",
            pa.struct(
                [
                    ("question_id", pa.string()),
                    ("split", pa.string()),
                    ("index", pa.int64()),
                    ("dataset", pa.string()),
                    ("entry", pa.string()),
                    ("reward", pa.string()),
                ]
            ),
        ),
    ]
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rejected:
    """A generated problem that was left out, and why."""

    index: int
    question_id: str
    reason: str
    question: str
    answer: str


def prepare_data(settings: Data, folder: Path) -> Manifest:
    """Make the data set in `folder`: a parquet file a split, `rejected.jsonl`, and `manifest.json`.

    Equal settings give equal bytes. Raises `SlipwayError` when the settings are at fault, the task has too few
    distinct problems, splits overlap, or the reward fails its self-test.
    """
    inputs = {"version": VERSION, "settings": settings.model_dump(mode="json")}
    with open_product(STAGE, folder / "manifest.json", folder, inputs) as product:
        if product.restore():
            return read_manifest(product.manifest_path, STAGE)
        sizes = {"heldout": settings.heldout, "warmup": settings.warmup, "train": settings.train}
        sizes = {name: size for name, size in sizes.items() if size > 0}
        dataset = open_dataset(
            settings.dataset,
            settings.parameters,
            settings.seed,
            MAX_GENERATED_PER_PROBLEM * sum(sizes.values()) + PATIENCE,
        )
        problems, rejected = collect(generate(dataset), sum(sizes.values()), settings.dataset)
        for stale in folder.glob("*.parquet"):
            stale.unlink()
        paths = []
        reward = reward_text(settings.reward)
        for name, chosen in split(problems, sizes, settings.seed).items():
            rows = [to_row(problem, name, category(dataset), settings, reward) for problem in chosen]
            path = folder / f"{name}.parquet"
            write_rows(rows, path)
            paths.append(path)
            logger.info("prepare_data: %d problems in %s", len(rows), path.name)
        write_text(
            folder / "rejected.jsonl",
            "".join(json.dumps(asdict(item), ensure_ascii=False) + "\n" for item in rejected),
        )
        # checked on what was written, not on what was meant to be
        written = {path.stem: read_rows(path) for path in paths}
        facts = {
            "problems": sizes,
            "rejected": dict(sorted(Counter(item.reason for item in rejected).items())),
            "overlap": check_splits({name: [_question(row) for row in rows] for name, rows in written.items()}),
            "reward_self_test": check_rewards(written["heldout"], score),
        }
        return product.publish([*paths, folder / "rejected.jsonl"], facts)


def collect(made: Iterable[Problem], wanted: int, dataset: str) -> tuple[list[Problem], list[Rejected]]:
    """Take the first `wanted` good problems of `made`; return them and those that were rejected.

    Raises `SlipwayError` when the task runs dry before.
    """
    found: dict[str, Problem] = {}
    rejected: list[Rejected] = []
    since_last = 0
    for problem in made:
        reason = _fault(problem, found)
        if reason is None:
            found[problem.question] = problem
            since_last = 0
        else:
            rejected.append(Rejected(problem.index, problem.question_id, reason, problem.question, problem.answer))
            since_last += 1
        if len(found) == wanted:
            return list(found.values()), rejected
        if since_last > max(PATIENCE, len(found)):
            break
    reasons = Counter(item.reason for item in rejected)
    raise SlipwayError(
        f"dataset {dataset} with these parameters gave only {len(found)} distinct problems in "
        f"{len(found) + len(rejected)} tries ({dict(reasons)}), but train + heldout + warmup need {wanted}. "
        "Ask for fewer, or widen its parameters."
    )


def to_row(problem: Problem, split_name: str, ability: str, settings: Data, reward: str) -> dict[str, Any]:
    """Render a problem as a row of verl's format; the instruction stands on its own line before the question."""
    content = f"{settings.instruction}\n{problem.question}" if settings.instruction else problem.question
    entry = {
        "task": settings.task,
        "question": problem.question,
        "answer": problem.answer,
        "metadata": {
            "dataset": settings.dataset,
            "parameters": settings.parameters,
            "metadata": problem.metadata,
        },
    }
    try:
        entry_text = json.dumps(entry, sort_keys=True, ensure_ascii=False)
    except TypeError as error:
        raise SlipwayError(f"dataset {settings.dataset}: its problems do not go into JSON ({error})") from None
    return {
        "data_source": f"{settings.task}/{settings.dataset}",
        "prompt": [{"role": "user", "content": content}],
        "ability": ability,
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "extra_info": {
            "question_id": problem.question_id,
            "split": split_name,
            "index": problem.index,
            "dataset": settings.dataset,
            "entry": entry_text,
            "reward": reward,
        },
    }


def write_rows(rows: list[dict[str, Any]], path: Path) -> None:
    """Write rows as parquet, atomically; equal rows give equal bytes."""
    with atomic_path(path) as temporary:
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), temporary)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows that `write_rows` wrote."""
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def _fault(problem: Problem, found: Mapping[str, Problem]) -> str | None:
    if not problem.question.strip():
        return "empty question"
    if not problem.answer.strip():
        return "empty answer"
    if problem.question in found:
        return "duplicate question"
    return None


def _question(row: Mapping[str, Any]) -> str:
    question: str = json.loads(row["extra_info"]["entry"])["question"]
    return question
