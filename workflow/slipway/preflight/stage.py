"""Rule `preflight`: all checks of one run, one report; the manifest exists only when no finding is an error."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from slipway.config.schema import Run
from slipway.config.verl import ROLLOUT
from slipway.errors import SlipwayError
from slipway.manifest import open_product, read_manifest, write_text
from slipway.models.architecture import Architecture
from slipway.models.layout import Layout
from slipway.models.tokenizer import load_tokenizer
from slipway.preflight import inputs
from slipway.preflight.composition import check_turns_with_verl, check_with_verl
from slipway.preflight.disk import check_disk, evaluated_bytes
from slipway.preflight.findings import Finding, Severity, as_markdown, errors, write_findings
from slipway.preflight.planning.calibration import GIB, MEMORY_BAND
from slipway.preflight.planning.memory import checkpoint_bytes_of
from slipway.preflight.reward_canary import Groups, Reward, check_reward, check_variance
from slipway.preflight.rules.batches import arithmetic
from slipway.preflight.rules.memory import forecast_of
from slipway.preflight.sandbox import check_sandbox
from slipway.preflight.static import check_run
from slipway.preflight.subject import Subject
from slipway.preflight.versions import check_kernels, check_pairs, installed

VERSION = 7

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Candidate:
    """A run that wants to start: its settings, what it resolved to, and the files that it will use."""

    name: str
    run: Run
    subject: Subject
    model: Architecture
    resolved: Mapping[str, Any]
    model_folder: Path
    data_folder: Path
    heldout_folders: Mapping[str, Path]
    megatron_manifest: Path
    base_samples: Mapping[str, Path]
    """Where the base model's answers are, by evaluation, once rule evaluate has written them."""
    compute_score: Reward

    @property
    def layout(self) -> Layout:
        """The actor's layout; the static checks have seen that its sizes are numbers."""
        layout = self.subject.layout
        assert layout is not None
        return layout


def preflight(candidate: Candidate, manifest_path: Path, folder: Path) -> None:
    """Check everything, write findings to `folder` always, and `manifest_path` when none is an error.

    Raises `SlipwayError` with every error when there is one.
    """
    converted = read_manifest(candidate.megatron_manifest, "convert_megatron")
    prepared = read_manifest(candidate.data_folder / "manifest.json", "prepare_data")
    product_inputs = {
        "version": VERSION,
        "verl": dict(candidate.resolved),
        "disk": {"keep": candidate.run.keep_checkpoints, "evaluated": list(candidate.run.evaluated_steps)},
        "model": converted.digest,
        "data": prepared.digest,
        "heldout": {
            name: read_manifest(path / "manifest.json", "prepare_data").digest
            for name, path in sorted(candidate.heldout_folders.items())
        },
    }
    with open_product("preflight", manifest_path, folder, product_inputs) as product:
        if product.restore():
            return
        findings, measured = _check(candidate, folder)
        tables = _tables(candidate, measured)
        write_findings(folder, candidate.name, findings, tables)
        for finding in findings:
            if finding.severity is not Severity.ERROR:
                logger.info("preflight %s: %s: %s", candidate.name, finding.severity, finding.as_problem())
        grave = errors(findings)
        if grave:
            listed = "\n  - ".join(str(finding.as_problem()) for finding in grave)
            raise SlipwayError(f"preflight of run {candidate.name!r} found {len(grave)} error(s):\n  - {listed}")
        logger.info(
            "preflight %s: no errors, %d other finding(s); see %s",
            candidate.name,
            len(findings),
            folder / "findings.md",
        )
        product.publish(
            [folder / "findings.json", folder / "findings.md"],
            facts={
                "findings": [asdict(finding) for finding in findings],
                "layout": asdict(candidate.layout),
                "lengths": {split: asdict(lengths) for split, lengths in measured.lengths.items()},
                "score_seconds": measured.score_seconds,
                "base_groups": {name: asdict(groups) for name, groups in measured.groups.items()},
                "memory": _forecast_facts(candidate.subject),
            },
        )
        write_text(manifest_path.with_suffix(".md"), as_markdown(candidate.name, findings, tables))


@dataclass
class Measured:
    """What was measured on data: prompt lengths by split, seconds a score, the base model's groups by evaluation."""

    lengths: dict[str, inputs.Lengths] = field(default_factory=dict)
    groups: dict[str, Groups] = field(default_factory=dict)
    score_seconds: float | None = None


def _check(candidate: Candidate, folder: Path) -> tuple[list[Finding], Measured]:
    run = candidate.run
    findings = check_run(candidate.name, run, candidate.subject)
    findings += check_pairs(installed())
    if run.device == "cuda":
        findings += check_kernels(candidate.subject)
    findings += check_disk(candidate.name, run, candidate.model, folder)
    findings += check_with_verl(candidate.name, candidate.resolved)
    findings += inputs.check_tokenizer(run.model, candidate.model_folder, candidate.model)
    measured = Measured()
    if errors(findings):
        return findings, measured
    findings += check_turns_with_verl(run.model, candidate.model_folder)
    tokenizer = load_tokenizer(candidate.model_folder)
    train = inputs.read_split(candidate.data_folder / "train.parquet")
    findings += check_sandbox(run.data, train)
    if errors(findings):
        return findings, measured
    faults, measured.score_seconds = check_reward(run.data, train, candidate.compute_score)
    findings += faults
    if measured.score_seconds is not None:
        logger.info("preflight %s: a score takes %.1f ms", candidate.name, 1000 * measured.score_seconds)
    measured.lengths["training"] = inputs.measure_prompts(train, tokenizer, run.grpo.max_prompt_length)
    for name, path in candidate.heldout_folders.items():
        heldout = inputs.read_split(path / "heldout.parquet")
        findings += inputs.check_disjoint(candidate.name, train, heldout)
        limit = run.grpo.max_prompt_length
        measured.lengths[f"held-out ({name})"] = inputs.measure_prompts(heldout, tokenizer, limit)
        samples = candidate.base_samples[name]
        if samples.is_file() and not faults:
            flat, measured.groups[name] = check_variance(candidate.name, samples, heldout, candidate.compute_score)
            findings += flat
    for split, lengths in measured.lengths.items():
        findings += inputs.check_lengths(candidate.name, run, split, lengths)
    return findings, measured


def _tables(candidate: Candidate, measured: Measured) -> str:
    run, layout = candidate.run, candidate.layout
    actor = [layout.tensor, layout.pipeline, layout.context, layout.expert, layout.data]
    tensor = candidate.subject.count(f"{ROLLOUT}.tensor_model_parallel_size") or 1
    rollout = [tensor, 1, 1, 1, layout.world // tensor]
    return "\n".join(
        [
            f"## Parallel layout on {run.nodes} node(s) x {run.gpus_per_node} rank(s)",
            "",
            *_table(
                ("", "TP", "PP", "CP", "EP", "DP"),
                [("actor", *actor), ("reference", *actor), ("rollout", *rollout)],
            ),
            "",
            "## Batch arithmetic",
            "",
            *_table(("quantity", "value"), arithmetic(candidate.subject)),
            "",
            *_memory(candidate),
            "## Lengths",
            "",
            *_table(
                ("quantity", "value"),
                [
                    (
                        f"{split} prompts: longest / mean / limit, tokens",
                        f"{lengths.longest} / {lengths.mean:.1f} / {run.grpo.max_prompt_length}",
                    )
                    for split, lengths in measured.lengths.items()
                ],
            ),
            "",
            "## Reward",
            "",
            *_table(("quantity", "value"), _reward_rows(measured)),
        ]
    )


def _reward_rows(measured: Measured) -> list[tuple[str, str]]:
    seconds = measured.score_seconds
    rows = [("time of a score, ms", "not measured" if seconds is None else f"{1000 * seconds:.1f}")]
    for name, groups in measured.groups.items():
        what = f"groups of the base model's answers ({name}) that all earn the same"
        rows.append((what, f"{groups.without_variance} of {groups.groups}"))
    return rows


def _memory(candidate: Candidate) -> list[str]:
    """Return the forecast: one row a phase, then the host's memory and the disk."""
    model, keep = candidate.model, candidate.run.keep_checkpoints
    checkpoint = checkpoint_bytes_of(model)
    rows = [
        ("parameters", f"{model.parameter_count:,}"),
        ("a checkpoint on disk, GiB", f"{checkpoint / GIB:.3f}"),
        (
            f"checkpoints on disk while one more than the kept {keep} is written, GiB",
            f"{(keep + 1) * checkpoint / GIB:.3f}",
        ),
    ]
    if candidate.run.evaluated_steps:
        what = f"weights and exported models of {len(candidate.run.evaluated_steps)} evaluated steps, GiB"
        rows.append((what, f"{evaluated_bytes(candidate.run, model) / GIB:.3f}"))
    lines = ["## Memory", ""]
    known = forecast_of(candidate.subject)
    if known is not None:
        _, needed = known
        memory = candidate.subject.gpu_memory or 0
        phases = [
            (
                phase.name,
                f"{phase.total / GIB:.2f}",
                ", ".join(f"{term} {size / GIB:.2f}" for term, size in phase.terms.items() if size),
            )
            for phase in needed.phases
        ]
        lines += [
            f"Forecast for the GPU that needs most, of {memory / GIB:.0f} GiB; take it to be off by up to "
            f"{MEMORY_BAND:.0%} (docs/memory.md).",
            "",
            *_table(("phase", "GiB", "made of"), phases),
            "",
        ]
        rows += [
            (f"host memory of a node: {term}, GiB", f"{size / GIB:.1f}") for term, size in needed.host.items() if size
        ]
        rows += [
            ("/dev/shm of a node, if weights travel through it, GiB", f"{needed.shared / GIB:.1f}"),
            ("tokens in the cache of one rollout replica", f"{max(0, round(needed.cache_tokens)):,}"),
        ]
    return [*lines, *_table(("quantity", "value"), rows), ""]


def _forecast_facts(subject: Subject) -> dict[str, Any] | None:
    """Return the forecast of a GPU's memory, bytes, which the report lays beside what was measured; None on the CPU."""
    known = forecast_of(subject)
    if known is None:
        return None
    _, needed = known
    phases = [
        {
            "name": phase.name,
            "terms": {term: round(size) for term, size in phase.terms.items() if size},
            "trainer_allocated": round(phase.allocated),
            "trainer_reserved": round(phase.reserved),
        }
        for phase in needed.phases
    ]
    return {"gpu": subject.gpu_memory, "band": MEMORY_BAND, "phases": phases}


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(map(str, row)) + " |" for row in rows),
    ]
