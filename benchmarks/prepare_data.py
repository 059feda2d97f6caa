"""Cost of prepare_data with all filters, against plain rendering by `datasets.map`; and its memory on a large file.

    python benchmarks/prepare_data.py                    # 200,000 rows, and a file of 5 GB in a temporary folder
    python benchmarks/prepare_data.py --rows 20000 --gb 0.3

Both sides render the same JSON lines into verl's rows, with the same number of processes, one after the other. The
plain side does what verl's own examples do: `load_dataset`, a function a row by `map`, `to_parquet`; no filter.
`map_with_template` also applies the model's chat template to each prompt, as one must to know its length.
The last line is one JSON object of figures.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "workflow"))

import datasets  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

from slipway.config.schema import Data  # noqa: E402
from slipway.data import Surroundings, prepare_data  # noqa: E402
from slipway.models.demo_tokenizer import save_tokenizer, train_tokenizer  # noqa: E402

INSTRUCTION = "Reason step by step, then give the answer after ####."
TOKENS = 512  # above most prompts here, as a user would set it; about one in ten is longer


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--gb", type=float, default=5.0, help="size of the large file, GB; 0: leave it out")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory(prefix="slipway-bench-") as name:
        folder = Path(name)
        tokenizer = make_tokenizer(folder / "tokenizer")
        file = folder / "problems.jsonl"
        write_problems(file, lambda written, size: written < arguments.rows)
        write_problems(folder / "evaluation.jsonl", lambda written, size: written < 1000, seed=1)
        ours, plain, templated = [], [], []
        for index in range(arguments.rounds):
            plain.append(timed(partial(render_by_map, file, folder / f"map-{index}", arguments.processes, None)))
            templated.append(
                timed(partial(render_by_map, file, folder / f"template-{index}", arguments.processes, tokenizer))
            )
            ours.append(timed(partial(prepare, file, folder / f"ours-{index}", arguments.processes, arguments.rows)))
            print(f"map {plain[-1]:.1f} s, with template {templated[-1]:.1f} s, prepare_data {ours[-1]:.1f} s")
        figures: dict[str, Any] = {
            "rows": arguments.rows,
            "processes": arguments.processes,
            "map_s": round(statistics.median(plain), 2),
            "map_with_template_s": round(statistics.median(templated), 2),
            "prepare_data_s": round(statistics.median(ours), 2),
            "cost_vs_datasets_map": round(statistics.median(ours) / statistics.median(plain), 2),
            "cost_vs_map_with_template": round(statistics.median(ours) / statistics.median(templated), 2),
            "rows_per_s": round(arguments.rows / statistics.median(ours)),
            "rejected": json.loads((folder / "ours-0" / "manifest.json").read_text())["facts"]["rejected"],
        }
        if arguments.gb:
            figures |= large_file(folder, arguments.gb, arguments.processes)
    print(json.dumps(figures))


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that `work` took."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def settings(file: Path, train: int) -> Data:
    """Return a data set with every filter on."""
    return Data.model_validate(
        {
            "task": "math",
            "sources": [{"path": str(file)}],
            "instruction": INSTRUCTION,
            "train": train,
            "heldout": 1000,
            "filters": {
                "max_prompt_length": {"tokens": TOKENS, "model": "any"},
                "near_duplicates": {},
                "decontaminate": {"against": [str(file.parent / "evaluation.jsonl")]},
                "pass_rate": {"file": str(file.parent / "samples.jsonl"), "max": 0.9, "unmeasured": "keep"},
            },
        }
    )


def prepare(file: Path, folder: Path, processes: int, rows: int) -> None:
    """Train on eight tenths of the rows: what the filters leave is a little more."""
    (file.parent / "samples.jsonl").write_text('{"question_id": "00", "correct": true}\n', encoding="utf-8")
    around = Surroundings(processes=processes, tokenizer=file.parent / "tokenizer")
    prepare_data(settings(file, int(rows * 0.8)), folder, around)


def render_by_map(file: Path, folder: Path, processes: int, tokenizer: Any) -> None:
    """Render by `datasets.map` alone, as verl's examples do."""
    loaded = datasets.load_dataset("json", data_files=str(file), split="train", cache_dir=str(folder / "cache"))

    def render(record: dict[str, str], index: int) -> dict[str, Any]:
        answer = record["answer"].rpartition("####")[2].strip()
        prompt = [{"role": "user", "content": f"{INSTRUCTION}\n{record['question']}"}]
        row = {
            "data_source": "math/problems",
            "prompt": prompt,
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": answer},
            "extra_info": {
                "split": "train",
                "index": index,
                "answer": record["answer"],
                "question": record["question"],
            },
        }
        if tokenizer is not None:
            row["text"] = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
        return row

    rendered = loaded.map(render, with_indices=True, num_proc=processes, remove_columns=loaded.column_names)
    rendered.to_parquet(str(folder / "train.parquet"))


def large_file(folder: Path, gigabytes: float, processes: int) -> dict[str, Any]:
    """Measure the peak memory of prepare_data on a file of so many GB, its workers included."""
    file = folder / "large.jsonl"
    rows = write_problems(file, lambda written, size: size < gigabytes * 1e9, seed=2)
    with Peak() as peak:
        seconds = timed(partial(prepare, file, folder / "large", processes, rows))
    size = file.stat().st_size
    file.unlink()
    return {
        "large_file_gb": round(size / 1e9, 2),
        "large_file_rows": rows,
        "large_file_s": round(seconds, 1),
        "peak_gib_5gb_jsonl": round(peak.gib, 2),
        "peak_gib_with_mapped_files": round(peak.resident_gib, 2),
    }


class Peak:
    """Samples the memory of this process and its children: their own, and with mapped files (RSS).

    What processes share after a fork is counted once (Pss_Anon of smaps_rollup).
    """

    gib = resident_gib = 0.0

    def __enter__(self) -> "Peak":
        """Start sampling."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        me = psutil.Process()
        while not self._stop.wait(0.2):
            anonymous = resident = 0
            for process in [me, *me.children(recursive=True)]:
                try:
                    rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
                except OSError:
                    continue
                fields = dict(line.split(":", 1) for line in rollup.splitlines()[1:])
                anonymous += int(fields.get("Pss_Anon", "0 kB").split()[0])
                resident += int(fields.get("Rss", "0 kB").split()[0])
            self.gib = max(self.gib, anonymous / 2**20)
            self.resident_gib = max(self.resident_gib, resident / 2**20)


def write_problems(file: Path, more: Callable[[int, int], bool], seed: int = 0) -> int:
    """Write word problems in GSM8K's form while `more(rows, bytes)`; return the rows.

    One in 50 repeats an earlier question, one in 50 changes a word of one, one in 10 is long.
    """
    chance = random.Random(seed)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(5000)]
    recent: list[str] = []
    rows = size = 0
    with file.open("w", encoding="utf-8") as out:
        while more(rows, size):
            kind = chance.random()
            if kind < 0.02 and recent:
                question = chance.choice(recent)
            elif kind < 0.04 and recent:
                question = f"{chance.choice(recent)} {chance.choice(words)}"
            else:
                length = chance.randint(120, 300) if kind > 0.9 else chance.randint(20, 70)
                picked = chance.choices(words, k=length)
                picked[::9] = [str(chance.randint(1, 999)) for _ in picked[::9]]
                question = " ".join(picked).capitalize() + "?"
                recent = [*recent[-500:], question]
            reasoning = " ".join(chance.choices(words, k=40))
            line = json.dumps({"question": question, "answer": f"{reasoning}\n#### {chance.randint(1, 9999)}"}) + "\n"
            out.write(line)
            rows, size = rows + 1, size + len(line)
    return rows


def make_tokenizer(folder: Path) -> Any:
    """Train a byte-level tokenizer with a chat template on such problems, and load it as a user's would be."""
    sample = folder.parent / "sample.jsonl"
    write_problems(sample, lambda written, size: written < 2000)
    texts = [json.loads(line)["question"] for line in sample.read_text().splitlines()]
    save_tokenizer(train_tokenizer(texts, ["1"]), folder)
    return AutoTokenizer.from_pretrained(folder)


if __name__ == "__main__":
    main()
