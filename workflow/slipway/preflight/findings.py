"""Findings: what preflight has to say, and how it says it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from slipway.config.load import Problem
from slipway.manifest import write_json, write_text


class Severity(StrEnum):
    """`error`: fails or trains the wrong thing; `warning`: wastes or risks something; `note`: worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """One finding: the rule that found it, the key and its value, why it matters, and what would work."""

    rule: str
    severity: Severity
    key: str
    value: Any
    why: str
    remedy: str = ""

    def as_problem(self) -> Problem:
        """Return the finding in the form of the config's own problems."""
        return Problem(self.key, self.value, self.why, self.remedy)


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that forbid the run."""
    return [finding for finding in findings if finding.severity is Severity.ERROR]


def nearest(value: int, candidates: Iterable[int], count: int = 3) -> str:
    """Return the candidates nearest to `value`, in words; empty when there is none."""
    near = sorted(sorted(set(candidates)), key=lambda candidate: abs(candidate - value))[:count]
    return " or ".join(map(str, sorted(near)))


def divisors(number: int) -> list[int]:
    """Return the positive whole numbers that divide `number`."""
    # in pairs, so that a slip of a few zeros in the config is an error at once and not a dry run without end
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})


def as_text(findings: Sequence[Finding]) -> str:
    """Return findings for a terminal, gravest first, one a line, and their count."""
    lines = [
        f"{finding.severity}: [{finding.rule}] {finding.as_problem()}"
        for severity in Severity
        for finding in findings
        if finding.severity is severity
    ]
    return "\n".join([*lines, _counted(findings)])


def _counted(findings: Sequence[Finding]) -> str:
    count = {severity: sum(f.severity is severity for f in findings) for severity in Severity}
    return ", ".join(f"{number} {severity.value}(s)" for severity, number in count.items()) + "."


def write_findings(folder: Path, run: str, findings: Sequence[Finding], tables: str) -> None:
    """Write `findings.json` and `findings.md` to `folder`; `tables` is markdown put at the end."""
    write_json(folder / "findings.json", [asdict(finding) for finding in findings])
    write_text(folder / "findings.md", as_markdown(run, findings, tables))


def as_markdown(run: str, findings: Sequence[Finding], tables: str) -> str:
    """Return the report that a person reads: gravest findings first, then the tables."""
    lines = [f"# Preflight of {run}", ""]
    lines += [_counted(findings), ""]
    for severity in Severity:
        for finding in findings:
            if finding.severity is severity:
                lines.append(f"* **{severity.value}** [{finding.rule}] {finding.as_problem()}")
    return "\n".join([*lines, "", tables.rstrip(), ""])
