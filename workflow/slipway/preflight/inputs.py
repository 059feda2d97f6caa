"""Data and tokenizer against the run's limits: what is only known once they are there."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet
from transformers import PreTrainedTokenizerBase

from slipway.config.schema import Run
from slipway.errors import SlipwayError
from slipway.models.architecture import Architecture
from slipway.models.tokenizer import load_tokenizer
from slipway.preflight.findings import Finding, Severity

Row = dict[str, Any]


@dataclass(frozen=True)
class Lengths:
    """Prompt lengths of a split in tokens, chat template included."""

    longest: int
    mean: float
    over_limit: int
    prompts: int


def read_split(path: Path) -> list[Row]:
    """Return the rows of a prepared split."""
    return list(pyarrow.parquet.read_table(path).to_pylist())


def check_disjoint(run: str, train: Sequence[Row], heldout: Sequence[Row]) -> list[Finding]:
    """Refuse training problems that are evaluated on."""
    # by what they ask: the same question under another instruction is the same
    trained_on = {row["extra_info"]["question_id"] for row in train}
    shared = [row["prompt"][-1]["content"] for row in heldout if row["extra_info"]["question_id"] in trained_on]
    if not shared:
        return []
    return [
        Finding(
            "S2",
            Severity.ERROR,
            f"runs.{run}.evaluation",
            None,
            f"{len(shared)} held-out questions are trained on, e.g. {min(shared)!r}.",
            "Prepare the data again. Two data sets of one generator need seeds that lie further apart than either has "
            "problems (problem n of seed s is problem n - 1 of seed s + 1); what still coincides is left out of "
            "training by its `filters.decontaminate: {enabled: true, words: 50}`.",
        )
    ]


def measure_prompts(rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase, limit: int) -> Lengths:
    """Measure prompts as verl does: rendered by the model's own chat template."""
    lengths = [
        len(
            tokenizer(
                tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False),
                add_special_tokens=False,
            )["input_ids"]
        )
        for row in rows
    ]
    return Lengths(max(lengths), sum(lengths) / len(lengths), sum(length > limit for length in lengths), len(lengths))


def check_lengths(name: str, run: Run, split: str, lengths: Lengths) -> list[Finding]:
    """Refuse prompts that verl would cut from the left without an error."""
    if not lengths.over_limit:
        return []
    return [
        Finding(
            "R43",
            Severity.ERROR,
            f"runs.{name}.grpo.max_prompt_length",
            run.grpo.max_prompt_length,
            f"{lengths.over_limit} of {lengths.prompts} {split} prompts are longer: verl would cut them.",
            f"Use at least {lengths.longest}.",
        )
    ]


def check_tokenizer(name: str, folder: Path, model: Architecture) -> list[Finding]:
    """Check that the tokenizer has what training needs and fits the model's vocabulary."""
    key = f"models.{name}"
    try:
        tokenizer = load_tokenizer(folder)
    except SlipwayError as error:
        return [Finding("S8", Severity.ERROR, key, None, f"{error}.")]
    findings = []
    if tokenizer.chat_template is None:
        findings.append(
            Finding(
                "S3",
                Severity.ERROR,
                key,
                None,
                "the tokenizer has no chat template.",
                "Use an instruct model.",
            )
        )
    if tokenizer.eos_token_id is None:
        findings.append(
            Finding(
                "S4",
                Severity.ERROR,
                key,
                None,
                "the tokenizer has no end-of-sequence token.",
                "Set eos_token.",
            )
        )
    if len(tokenizer) > model.vocab_size:
        findings.append(
            Finding(
                "S5",
                Severity.ERROR,
                key,
                len(tokenizer),
                f"the tokenizer has more tokens than the model's vocabulary of {model.vocab_size}.",
                "Use the tokenizer that belongs to the model.",
            )
        )
    elif model.vocab_size > 1.05 * len(tokenizer) + 256:
        # the rollout engine normalises over the tokenizer's tokens, the trainer over all
        findings.append(
            Finding(
                "S5",
                Severity.WARNING,
                key,
                len(tokenizer),
                f"the model's vocabulary of {model.vocab_size} is far larger than the tokenizer's: log-probabilities "
                "of rollout and trainer will differ.",
            )
        )
    return findings
