"""Parquet in verl's format: written a row group at a time, in an order that no process decides."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from slipway.config.schema import Data
from slipway.data.candidates import REASONS, Candidates, Numbers
from slipway.data.rendering import MESSAGES, Rendering
from slipway.manifest import atomic_path
from slipway.rewards import reward_text

# A row group, of which several copies are in memory: so many rows, or fewer where they are long.
ROWS_OF_A_GROUP = 50_000
BYTES_OF_A_GROUP = 64 * 2**20
SHOWN = 1000  # letters of a rejected problem
# made once: json.dumps makes one for each call that asks for more than its defaults
_JSON = json.JSONEncoder(ensure_ascii=False)

SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", MESSAGES),
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


def write_split(
    path: Path, candidates: Candidates, chosen: Numbers, data: Data, rendering: Rendering, work: Path
) -> None:
    """Write the `chosen` problems in their order, atomically; equal problems give equal bytes.

    They are sorted on the disk, in `work`: what is in memory is one row group.
    """
    groups = _sort_into_groups(candidates, chosen, work)
    abilities = pa.array([pool.ability or data.task for pool in candidates.pools])
    with atomic_path(path) as temporary, pq.ParquetWriter(temporary, SCHEMA) as writer:
        for group in groups:
            writer.write_table(_render(group, path.stem, data, rendering, abilities))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a split."""
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def read_first_rows(path: Path, count: int) -> list[dict[str, Any]]:
    """Read the first rows of a split, at most `count`; the others stay on the disk."""
    with pq.ParquetFile(path) as file:
        batch = next(file.iter_batches(batch_size=count), None)
    rows: list[dict[str, Any]] = batch.to_pylist() if batch else []
    return rows


def read_questions(path: Path) -> list[str]:
    """Return the questions of a split, without what stands around them."""
    with pq.ParquetFile(path) as file:
        column = file.read(columns=["extra_info.entry"]).column("extra_info").combine_chunks()
    return [json.loads(entry)["question"] for entry in column.field(0).to_pylist()]


def write_rejected(path: Path, candidates: Candidates, data: Data) -> None:
    """Write one JSON object a rejected problem, in the order of the sources, atomically."""
    columns = ["file", "place", "question", "answer", "fault"]
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for start, batch in candidates.batches(columns):
            # a batch is of one source
            source = candidates.source_of(start)
            name, unit = data.sources[source].name, candidates.pools[source].unit
            places = np.flatnonzero(candidates.reason[start : start + len(batch)])
            for row, number in zip(batch.take(places).to_pylist(), (start + places).tolist(), strict=True):
                rejected = {
                    "reason": REASONS[candidates.reason[number]],
                    "detail": candidates.explain(number, row["fault"]),
                    "source": name,
                    "file": row["file"],
                    unit: row["place"],
                    "question_id": f"{int(candidates.id[number]):016x}",
                    "question": row["question"][:SHOWN],
                    "answer": row["answer"][:SHOWN],
                }
                file.write(_JSON.encode(rejected) + "\n")


def _sort_into_groups(candidates: Candidates, chosen: Numbers, work: Path) -> Iterator[pa.Table]:
    """Yield the chosen problems in their order, a row group each: spread over files first, then sorted one by one."""
    text_bytes = sum(pool.text_bytes for pool in candidates.pools)
    rows = min(ROWS_OF_A_GROUP, 1 + BYTES_OF_A_GROUP * len(candidates.order) // (1 + text_bytes))
    rank = np.full(len(candidates.order), -1, dtype=np.int64)
    rank[chosen] = np.arange(len(chosen))
    columns = ["place", "question", "answer", "entry", "id"]
    files: dict[int, pa.RecordBatchFileWriter] = {}
    for start, batch in candidates.batches(columns):
        ranks = rank[start : start + len(batch)]
        for group in np.unique(ranks[ranks >= 0] // rows).tolist():
            places = np.flatnonzero((ranks >= 0) & (ranks // rows == group))
            part = batch.take(pa.array(places))
            part = part.append_column("rank", pa.array(ranks[places]))
            part = part.append_column("source", pa.array([candidates.source_of(start)] * len(places), pa.int32()))
            if group not in files:
                files[group] = pa.ipc.new_file(str(work / f"group-{group}.arrow"), part.schema)
            files[group].write_batch(part)
    for group in sorted(files):
        files[group].close()
        path = work / f"group-{group}.arrow"
        with pa.OSFile(str(path)) as file:
            table = pa.ipc.open_file(file).read_all().combine_chunks()
        yield table.take(pc.sort_indices(table.column("rank")))
        path.unlink()


def _render(table: pa.Table, split: str, data: Data, rendering: Rendering, abilities: pa.Array) -> pa.Table:
    count = len(table)
    column = {name: table.column(name).combine_chunks() for name in table.column_names}
    source = column["source"]
    names = pa.array([item.name for item in data.sources])
    sources = pa.array([f"{data.task}/{item.name}" for item in data.sources])
    ids = [f"{number:016x}" for number in column["id"].to_pylist()]
    reward = reward_text(data.reward)
    extra = [
        pa.array(ids),
        _repeated(split, count),
        column["place"],
        names.take(source),
        column["entry"],
        _repeated(reward, count),
    ]
    model = [_repeated("rule", count), column["answer"]]
    return pa.table(
        [
            sources.take(source),
            rendering.column(column["question"]),
            abilities.take(source),
            pa.StructArray.from_arrays(model, fields=list(SCHEMA.field("reward_model").type)),
            pa.StructArray.from_arrays(extra, fields=list(SCHEMA.field("extra_info").type)),
        ],
        schema=SCHEMA,
    )


def _repeated(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text), count)
