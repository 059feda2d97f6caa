"""Stages prepare_data and hold_out: from sources to splits that verl trains and evaluates on."""

import logging
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa

from slipway.config.schema import Data
from slipway.data import splits
from slipway.data.canary import check_rewards
from slipway.data.candidates import Candidates, Numbers
from slipway.data.filters.contamination import Contamination, EvaluationSet, open_evaluation_file, read_evaluation_file
from slipway.data.filters.lengths import PromptLengths
from slipway.data.filters.pass_rate import read_pass_rates
from slipway.data.pool import Pool
from slipway.data.rendering import Rendering
from slipway.data.rows import read_first_rows, read_questions, write_rejected, write_split
from slipway.data.sources import GeneratedSource, Source, open_source
from slipway.errors import SlipwayError
from slipway.manifest import Manifest, hash_file, open_product, read_manifest
from slipway.models.tokenizer import load_tokenizer
from slipway.rewards import reward_text, score

STAGE, HOLD_OUT = "prepare_data", "hold_out"
VERSION = 3

# Generators repeat themselves. One is exhausted when so many problems in a row, or as many as there are usable ones
# already, brought nothing new.
PATIENCE = 2000
MAX_GENERATED_PER_PROBLEM = 50

HITS_IN_MANIFEST = 50
SELF_TEST_ROWS = 64
TOKENIZER_FILES = ("tokenizer*", "*.jinja", "vocab*", "merges.txt", "*.tiktoken", "special_tokens_map.json")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Surroundings:
    """What a data set is made with besides its settings.

    `tokenizer` is the folder of `filters.max_prompt_length.model`; `heldout` maps the names of the other data sets
    that are evaluated on to the folders of their rule hold_out.
    """

    name: str = "data"
    processes: int = 1
    tokenizer: Path | None = None
    heldout: Mapping[str, Path] = field(default_factory=dict)


def prepare_data(data: Data, folder: Path, around: Surroundings | None = None) -> Manifest:
    """Make the data set in `folder`: a parquet file a split, `rejected.jsonl`, and `manifest.json`.

    Equal settings and sources give equal bytes, whatever the number of processes. Raises `SlipwayError` when the
    settings or a record are at fault, there are too few problems, splits overlap, or the reward fails its self-test.
    """
    around = around or Surroundings()
    preparation = _Preparation(data, around)
    others = {name: read_manifest(path / "manifest.json", HOLD_OUT) for name, path in sorted(around.heldout.items())}
    inputs = (
        preparation.inputs()
        | preparation.inputs_of_training()
        | {
            "evaluation_sets": {name: manifest.hash_of("heldout.parquet") for name, manifest in others.items()},
        }
    )
    with open_product(STAGE, folder / "manifest.json", folder, inputs) as product, _work_folder(folder) as work:
        if product.restore():
            return read_manifest(product.manifest_path, STAGE)
        candidates, heldout, rendering = preparation.hold_out(work)
        asked = work / "heldout.parquet"
        write_split(asked, candidates, heldout, data, rendering, work)
        with ThreadPoolExecutor(2) as beside:
            # in the scorers' own process, while the other splits are filtered and written
            self_test = beside.submit(check_rewards, read_first_rows(asked, SELF_TEST_ROWS), score)
            candidates, dealt, rendering = preparation.deal(candidates, heldout, rendering)
            for stale in folder.glob("*.parquet"):
                stale.unlink()
            rejected = folder / "rejected.jsonl"
            rejecting = beside.submit(write_rejected, rejected, candidates, data)
            paths = []
            for name, chosen in dealt.items():
                path = folder / f"{name}.parquet"
                if name == "heldout":
                    asked.replace(path)
                else:
                    write_split(path, candidates, chosen, data, rendering, work)
                paths.append(path)
                logger.info("prepare_data: %d problems in %s", len(chosen), path.name)
            rejecting.result()
            facts = preparation.facts(candidates, dealt) | {
                # checked on what was written, not on what was meant to be
                "overlap": splits.check_splits({path.stem: splits.read_ids(path) for path in paths}),
                "reward_self_test": self_test.result(),
            }
        return product.publish([*paths, rejected], facts)


def hold_out(data: Data, folder: Path, around: Surroundings | None = None) -> Manifest:
    """Make `heldout.parquet` of a data set alone, for others to be decontaminated against.

    It depends on no other data set, so that two may be compared with each other. Raises as `prepare_data` does.
    """
    preparation = _Preparation(data, around or Surroundings())
    with (
        open_product(HOLD_OUT, folder / "manifest.json", folder, preparation.inputs()) as product,
        _work_folder(folder) as work,
    ):
        if product.restore():
            return read_manifest(product.manifest_path, HOLD_OUT)
        candidates, heldout, rendering = preparation.hold_out(work)
        path = folder / "heldout.parquet"
        write_split(path, candidates, heldout, data, rendering, work)
        return product.publish([path], {"problems": {"heldout": len(heldout)}})


class _Preparation:
    """One data set on its way from its sources to splits."""

    def __init__(self, data: Data, around: Surroundings):
        self._data = data
        self._around = around
        self._shares = splits.share_out(data)
        self._total = data.heldout + data.warmup + data.train + data.examples
        self._generated = data.task == "reasoning_gym"
        limit = MAX_GENERATED_PER_PROBLEM * self._total + PATIENCE
        self._sources: list[Source] = [
            open_source(source, f"data.{around.name}.sources[{index}]", data.seed, limit)
            for index, source in enumerate(data.sources)
        ]
        self._asked = [0] * len(self._sources)  # problems of each generator

    def inputs(self) -> dict[str, Any]:
        """Return what the held-out split depends on, as JSON."""
        folder = self._around.tokenizer
        files = {path for pattern in TOKENIZER_FILES for path in folder.glob(pattern)} if folder else set()
        return {
            "version": VERSION,
            "settings": self._data.model_dump(mode="json"),
            # with the text of a function of the user's
            "reward": reward_text(self._data.reward),
            "sources": [source.identity() for source in self._sources],
            "tokenizer": {path.name: hash_file(path) for path in sorted(files)},
        }

    def inputs_of_training(self) -> dict[str, Any]:
        """Return what the other splits depend on besides, as JSON."""
        filters, key = self._data.filters, f"data.{self._around.name}.filters"
        files = [
            open_evaluation_file(path, f"{key}.decontaminate.against[{index}]").identity()
            for index, path in enumerate(filters.decontaminate.against)
        ]
        rates = filters.pass_rate and Path(filters.pass_rate.file)
        if rates and not rates.is_file():
            raise SlipwayError(f"{key}.pass_rate.file: {str(rates)!r}: no such file; rule evaluate writes it")
        return {"evaluation_files": files, "pass_rates": hash_file(rates) if rates else None}

    def hold_out(self, work: Path) -> tuple[Candidates, Numbers, Rendering]:
        """Read the sources, as much of generators as it takes, and choose the held-out problems."""
        pools = self._open_pools(work)
        for index, share in enumerate(self._shares):
            first = self._data.examples if index == 0 else 0
            self._read(pools[index], index, sum(share.values()) + first)
        while True:
            candidates, rendering = self._examine(pools)
            heldout, lacking = splits.hold_out(candidates, self._shares, self._generated)
            if not self._grow(pools, candidates, lacking):
                return candidates, heldout, rendering

    def deal(
        self, candidates: Candidates, heldout: Numbers, rendering: Rendering
    ) -> tuple[Candidates, dict[str, Numbers], Rendering]:
        """Apply the filters of training to what `hold_out` returned, and deal the other splits.

        Where a generator has to make more, the problems get other numbers; the held-out ones stay the same problems.
        """
        while True:
            self._leave_out_of_training(candidates, heldout)
            dealt, lacking = splits.deal(candidates, heldout, self._shares, self._generated)
            if not self._grow(candidates.pools, candidates, lacking):
                return candidates, dealt, rendering
            candidates, rendering = self._examine(candidates.pools)
            heldout, _ = splits.hold_out(candidates, self._shares, self._generated)

    def facts(self, candidates: Candidates, dealt: Mapping[str, Numbers]) -> dict[str, Any]:
        """Return what the manifest says of the problems."""
        hits = candidates.contaminated()[:HITS_IN_MANIFEST]
        sources = []
        for index, source in enumerate(self._data.sources):
            low, high = candidates.starts[index], candidates.starts[index + 1]
            used = {name: int(np.count_nonzero((low <= chosen) & (chosen < high))) for name, chosen in dealt.items()}
            sources.append({"name": source.name, "read": int(high - low), "used": used} | _commit(self._sources[index]))
        return {
            "problems": {name: len(chosen) for name, chosen in dealt.items()},
            "sources": sources,
            "rejected": candidates.counts(),
            "filters": self._explained(),
            "contaminated": [f"{candidates.where(number)}: {candidates.detail[number]}" for number in hits],
            "examples": [candidates.where(number) for number in candidates.examples],
        }

    def _open_pools(self, work: Path) -> list[Pool]:
        data = self._data
        return [
            Pool(
                source,
                {"task": data.task, "seed": data.seed, "columns": settings.columns},
                data.filters.near_duplicates,
                work / f"pool-{index}",
                self._around.processes,
            )
            for index, (source, settings) in enumerate(zip(self._sources, data.sources, strict=True))
        ]

    def _read(self, pool: Pool, index: int, count: int) -> None:
        """Read all of a source, or the next `count` problems of a generator."""
        source = self._sources[index]
        if isinstance(source, GeneratedSource):
            pool.add(source.blocks(self._asked[index], count))
            self._asked[index] += count
        else:
            pool.add(source.blocks())

    def _examine(self, pools: Sequence[Pool]) -> tuple[Candidates, Rendering]:
        """Apply the filters of every split, and choose the worked examples."""
        data, filters = self._data, self._data.filters
        candidates = Candidates(pools)
        candidates.leave_out_faulty()
        candidates.leave_out_duplicates()
        if filters.near_duplicates is not None:
            candidates.leave_out_near_duplicates(filters.near_duplicates)
        candidates.examples = candidates.usable_of(0)[: data.examples].tolist()
        examples = [candidates.pools[0].example(number) for number in candidates.examples]
        rendering = Rendering(data.system_prompt, data.instruction, examples)
        if filters.max_prompt_length is not None:
            assert self._around.tokenizer is not None
            tokenizer = load_tokenizer(self._around.tokenizer)
            if tokenizer.chat_template is None:
                key, model = (
                    f"data.{self._around.name}.filters.max_prompt_length.model",
                    filters.max_prompt_length.model,
                )
                raise SlipwayError(f"{key}: {model!r} has no chat template; use an instruct model")
            candidates.leave_out_long(PromptLengths(tokenizer, filters.max_prompt_length.tokens, rendering))
        return candidates, rendering

    def _leave_out_of_training(self, candidates: Candidates, heldout: Numbers) -> None:
        filters, key = self._data.filters, f"data.{self._around.name}.filters"
        if self._data.decontaminates:
            own = [candidates.question(number) for number in heldout.tolist()]
            sets = [EvaluationSet(self._around.name, own)]
            for name, folder in sorted(self._around.heldout.items()):
                sets.append(EvaluationSet(name, read_questions(folder / "heldout.parquet")))
            for index, path in enumerate(filters.decontaminate.against):
                where = f"{key}.decontaminate.against[{index}]"
                sets.append(read_evaluation_file(path, filters.decontaminate.column, where))
            contamination = Contamination(sets, filters.decontaminate.words)
            self._check_examples(candidates, contamination)
            candidates.leave_out_contaminated(contamination, heldout)
        if filters.pass_rate is not None:
            rates = read_pass_rates(Path(filters.pass_rate.file), f"{key}.pass_rate.file")
            candidates.leave_out_by_pass_rate(rates, self._data, heldout)

    def _check_examples(self, candidates: Candidates, contamination: Contamination) -> None:
        """Refuse an example that gives an evaluation away: it would stand in every prompt."""
        shown = pa.array([candidates.question(number) for number in candidates.examples], pa.string())
        for place, name, text in contamination.hits(shown):
            raise SlipwayError(
                f"{candidates.where(candidates.examples[place])}: is one of the {len(shown)} examples, and shares with "
                f"the evaluation set {name}: {text!r}. Put another problem first in the source."
            )

    def _grow(self, pools: Sequence[Pool], candidates: Candidates, lacking: Sequence[int]) -> bool:
        """Generate more where something is lacking; return whether it was. Raises when there is no more."""
        if not any(lacking):
            return False
        for index, missing in enumerate(lacking):
            if not missing:
                continue
            source, usable = self._sources[index], len(candidates.usable_of(index))
            more = max(2 * missing, 256)
            if (
                not isinstance(source, GeneratedSource)
                or self._asked[index] >= source.size
                or candidates.since_last_usable(index) > max(PATIENCE, usable)
            ):
                raise SlipwayError(self._too_few(index, usable, missing, candidates))
            self._read(pools[index], index, more)
        return True

    def _too_few(self, index: int, usable: int, missing: int, candidates: Candidates) -> str:
        data, wanted = self._data, usable + missing
        records = len(candidates.pools[index])
        head = (
            f"data.{self._around.name}.sources[{index}]: {data.sources[index].name} gave only {usable} usable problems"
        )
        parts = "train + heldout + warmup" + (" (its share by weight)" if len(data.sources) > 1 else "")
        reasons = candidates.counts() or "none rejected"
        return (
            f"{head} in {records} {'tries' if self._generated else 'records'} ({reasons}), but {parts} need {wanted}. "
            + ("Ask for fewer, or widen its parameters." if self._generated else "Ask for fewer, or give more data.")
        )

    def _explained(self) -> list[str]:
        """Return what each filter that was on leaves out, in words."""
        filters = self._data.filters
        said = ["empty question, empty answer, unparsable: no problem can be made of the record"]
        said.append("duplicate question: equal to an earlier one but for letter case and white space")
        if near := filters.near_duplicates:
            said.append(
                f"near duplicate: {near.similarity:g} or more of the {near.words}-word sequences are an earlier one's"
            )
        if limit := filters.max_prompt_length:
            said.append(f"prompt too long: above {limit.tokens} tokens by tokenizer and chat template of {limit.model}")
        if self._data.decontaminates:
            names = [self._around.name, *sorted(self._around.heldout), *filters.decontaminate.against]
            words = filters.decontaminate.words
            said.append(
                f"contaminated: {words} words in a row as in an evaluation set ({', '.join(names)}); training only"
            )
        if rate := filters.pass_rate:
            said.append(f"pass rate: outside {rate.min:g} to {rate.max:g} in {rate.file}; training only")
        return said


def _commit(source: Source) -> dict[str, str]:
    commit = source.identity().get("commit")
    return {"commit": commit} if commit else {}


@contextmanager
def _work_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder for what is only needed meanwhile; a crash may have left one."""
    work = folder / ".work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    shown = datasets.are_progress_bars_disabled()
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if not shown:
            datasets.enable_progress_bars()
