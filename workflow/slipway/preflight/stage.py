"""Rule `preflight`: all checks of one run, one report; the manifest exists only when no finding is an error."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slipway.config.schema import Data, Parallel, Run
from slipway.errors import SlipwayError
from slipway.manifest import Manifest, open_product, read_manifest, write_text
from slipway.models.architecture import Architecture
from slipway.models.tokenizer import load_tokenizer
from slipway.preflight import inputs
from slipway.preflight.batches import arithmetic, check_batches
from slipway.preflight.composition import check_with_verl
from slipway.preflight.findings import Finding, Severity, as_markdown, errors, write_findings
from slipway.preflight.layout import check_layout, data_parallel_size, state_gib, world_size
from slipway.preflight.reward_canary import Reward, check_reward

VERSION = 1

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Subject:
    """What is checked: a run, what it resolved to, and the files that it will use."""

    name: str
    run: Run
    data: Data
    parallel: Parallel
    model: Architecture
    resolved: Mapping[str, Any]
    model_folder: Path
    data_folder: Path
    heldout_folders: Mapping[str, Path]
    megatron_manifest: Path
    compute_score: Reward


def preflight(subject: Subject, manifest_path: Path, folder: Path) -> None:
    """Check everything, write findings to `folder` always, and `manifest_path` when none is an error.

    Raises `SlipwayError` with every error when there is one.
    """
    converted = read_manifest(subject.megatron_manifest, "convert_megatron")
    prepared = read_manifest(subject.data_folder / "manifest.json", "prepare_data")
    product_inputs = {
        "version": VERSION,
        "verl": dict(subject.resolved),
        "model": converted.digest,
        "data": prepared.digest,
        "heldout": {
            name: read_manifest(path / "manifest.json", "prepare_data").digest
            for name, path in sorted(subject.heldout_folders.items())
        },
    }
    with open_product("preflight", manifest_path, folder, product_inputs) as product:
        if product.restore():
            return
        findings, lengths = _check(subject, converted)
        tables = _tables(subject, lengths)
        write_findings(folder, subject.name, findings, tables)
        for finding in findings:
            if finding.severity is not Severity.ERROR:
                logger.info("preflight %s: %s: %s", subject.name, finding.severity, finding.as_problem())
        grave = errors(findings)
        if grave:
            listed = "\n  - ".join(str(finding.as_problem()) for finding in grave)
            raise SlipwayError(f"preflight of run {subject.name!r} found {len(grave)} error(s):\n  - {listed}")
        logger.info(
            "preflight %s: no errors, %d other finding(s); see %s",
            subject.name,
            len(findings),
            folder / "findings.md",
        )
        product.publish(
            [folder / "findings.json", folder / "findings.md"],
            facts={
                "findings": [asdict(finding) for finding in findings],
                "parallel": subject.parallel.model_dump(),
                "lengths": {split: asdict(measured) for split, measured in lengths.items()},
            },
        )
        write_text(manifest_path.with_suffix(".md"), as_markdown(subject.name, findings, tables))


def _check(subject: Subject, converted: Manifest) -> tuple[list[Finding], dict[str, inputs.Lengths]]:
    run = subject.run
    findings = check_layout(subject.name, run, subject.parallel, subject.model)
    if not errors(findings):
        findings += check_batches(subject.name, run, subject.parallel, subject.data)
    findings += check_with_verl(subject.name, subject.resolved)
    findings += inputs.check_tokenizer(run.model, subject.model_folder, subject.model)
    if not errors(findings):
        tokenizer = load_tokenizer(subject.model_folder)
        train = inputs.read_split(subject.data_folder / "train.parquet")
        faults, seconds = check_reward(run.data, train, subject.compute_score)
        findings += faults
        if seconds is not None:
            logger.info("preflight %s: a score takes %.1f ms", subject.name, 1000 * seconds)
        lengths = {"training": inputs.measure_prompts(train, tokenizer, run.grpo.max_prompt_length)}
        for name, path in subject.heldout_folders.items():
            heldout = inputs.read_split(path / "heldout.parquet")
            findings += inputs.check_disjoint(subject.name, train, heldout)
            lengths[f"held-out ({name})"] = inputs.measure_prompts(heldout, tokenizer, run.grpo.max_prompt_length)
        for split, measured in lengths.items():
            findings += inputs.check_lengths(subject.name, run, split, measured)
        return findings, lengths
    return findings, {}


def _tables(subject: Subject, lengths: Mapping[str, inputs.Lengths]) -> str:
    run, parallel = subject.run, subject.parallel
    actor = [
        parallel.tensor,
        parallel.pipeline,
        parallel.context,
        parallel.expert,
        data_parallel_size(run, parallel),
    ]
    rollout = [parallel.rollout_tensor, 1, 1, 1, world_size(run) // parallel.rollout_tensor]
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
            *_table(("quantity", "value"), arithmetic(run, parallel)),
            "",
            "## Memory and lengths",
            "",
            *_table(
                ("quantity", "value"),
                [
                    ("parameters", f"{subject.model.parameter_count:,}"),
                    (
                        "weights, gradients, optimizer and reference, GiB a rank",
                        f"{state_gib(run, parallel, subject.model):.3f}",
                    ),
                    *(
                        (
                            f"{split} prompts: longest / mean / limit, tokens",
                            f"{measured.longest} / {measured.mean:.1f} / {run.grpo.max_prompt_length}",
                        )
                        for split, measured in lengths.items()
                    ),
                ],
            ),
        ]
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(map(str, row)) + " |" for row in rows),
    ]
