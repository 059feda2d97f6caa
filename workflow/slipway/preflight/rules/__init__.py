"""Every rule that a resolved verl config can be judged by, without torch, verl or a GPU."""

from collections.abc import Iterable

from slipway.config.verl import ACTOR
from slipway.preflight.findings import Finding, errors
from slipway.preflight.rules import algorithm, batches, layout, lengths, megatron, memory, rollout, trainer, types
from slipway.preflight.subject import Subject


def check(subject: Subject) -> list[Finding]:
    """Return everything that the rules have to say, each thing once."""
    found: list[Finding] = [*types.check(subject), *algorithm.check(subject), *trainer.check(subject)]
    if subject.on_megatron:
        for rules in (layout, batches, rollout, lengths, megatron):
            found += rules.check(subject)
        if not errors(found):  # of sizes that are wrong there is no forecast
            found += memory.check(subject)
    else:
        found.append(
            subject.note(
                "S11", f"{ACTOR}.strategy", "not Megatron-core: layout, batches and lengths are not judged.", ""
            )
        )
    return _without_repetition(found)


def _without_repetition(found: Iterable[Finding]) -> list[Finding]:
    # two keys of verl may be one setting of the user's
    return list({(finding.rule, finding.key, finding.why): finding for finding in found}.values())
