"""Rules of the parallel layout of actor and reference."""

from collections.abc import Iterator

from slipway.config.verl import REF
from slipway.preflight.findings import Finding
from slipway.preflight.rules.divisibility import faults
from slipway.preflight.subject import LAYOUT_KEYS, MEGATRON, TRANSFORMER, Subject


def check(subject: Subject) -> Iterator[Finding]:
    """Yield what Megatron-core would refuse, or what verl would train on wrong groups."""
    layout = subject.layout
    if layout is None:
        return
    custom = f"{TRANSFORMER}.pipeline_model_parallel_layout"
    for fault in faults(layout, subject.model):
        # a layout written out stage by stage is Megatron-core's own to judge
        if fault.rule in ("R6", "R7") and subject.get(custom) is not None:
            continue
        yield subject.error(fault.rule, f"{MEGATRON}.{LAYOUT_KEYS[fault.field]}", fault.why, fault.remedy)
    if subject.get(f"{MEGATRON}.dynamic_context_parallel") is True:
        # verl/workers/engine/megatron/transformer_impl.py:262
        yield subject.error(
            "R12",
            f"{MEGATRON}.dynamic_context_parallel",
            "megatron-core 0.16.1 has no such argument of initialize_model_parallel.",
            "Use context_parallel_size.",
        )
    if subject.has_reference:
        yield from _reference(subject)


def _reference(subject: Subject) -> Iterator[Finding]:
    """The reference lives in the same processes and takes the groups that were made first."""
    # verl/workers/engine/megatron/transformer_impl.py:242: a second engine returns early
    for field in ("tensor", "pipeline", "virtual_pipeline", "context", "expert", "expert_tensor"):
        actor, ref = (f"{role}.{LAYOUT_KEYS[field]}" for role in (MEGATRON, f"{REF}.megatron"))
        if subject.get(actor) != subject.get(ref):
            yield subject.error(
                "R25",
                ref,
                f"the actor has {subject.get(actor)!r}, and both are trained in the same groups of processes.",
                f"Use {subject.get(actor)!r}, or leave it out: the reference follows the actor.",
            )
