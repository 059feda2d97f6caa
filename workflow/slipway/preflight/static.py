"""What a run's settings alone tell: every rule, and the time limit where no rule has refused them."""

from slipway.config.schema import Run
from slipway.preflight.findings import Finding, errors
from slipway.preflight.rules import check
from slipway.preflight.subject import Subject
from slipway.preflight.walltime import check_walltime


def check_run(name: str, run: Run, subject: Subject) -> list[Finding]:
    """Return the findings about a run that need neither its data nor its weights."""
    findings = check(subject)
    if subject.model is not None and not errors(findings):
        findings += check_walltime(name, run, subject.model, subject)
    return findings
