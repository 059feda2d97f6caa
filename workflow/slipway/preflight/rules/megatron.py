"""Rules of Megatron-core's own settings: bridge, precision, recompute, experts, learning-rate schedule."""

from collections.abc import Iterator

from slipway.config.verl import ACTOR, REF, ROLLOUT, transformer_overrides
from slipway.models.architecture import Architecture
from slipway.preflight.findings import Finding
from slipway.preflight.subject import MEGATRON, TRANSFORMER, Subject

OPTIMIZER = f"{ACTOR}.optim"
# megatron/core/transformer/transformer_config.py:1196
RECOMPUTED = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")
DISPATCHERS = ("allgather", "alltoall", "flex")
# megatron/core/optimizer_param_scheduler.py
DECAY_STYLES = ("constant", "linear", "cosine", "inverse-square-root", "WSD")


def check(subject: Subject) -> Iterator[Finding]:
    """Yield what fails when the workers build the model, after the GPUs are held."""
    yield from _engine(subject)
    yield from _precision(subject)
    yield from _recompute(subject)
    yield from _experts(subject)
    yield from _corrections(subject)
    yield from _attention_backend(subject)
    yield from _schedule(subject)


def _engine(subject: Subject) -> Iterator[Finding]:
    for role in (ACTOR, REF) if subject.has_reference else (ACTOR,):
        section = f"{role}.megatron"
        if subject.get(f"{section}.use_mbridge") is not True:
            # verl/workers/engine/megatron/transformer_impl.py:191
            yield subject.error(
                "R26", f"{section}.use_mbridge", "verl builds its models through a bridge.", "Use true."
            )
        if subject.get(f"{section}.use_dist_checkpointing") is True and not subject.get(
            f"{section}.dist_checkpointing_path"
        ):
            # verl/workers/engine/megatron/transformer_impl.py:499
            yield subject.error(
                "R27", f"{section}.dist_checkpointing_path", "missing, and use_dist_checkpointing is on.", "Set it."
            )


def _precision(subject: Subject) -> Iterator[Finding]:
    dtypes = {}
    for role in (ACTOR, REF) if subject.has_reference else (ACTOR,):
        key = f"{role}.megatron.dtype"
        dtypes[key] = subject.get(key)
        if dtypes[key] not in ("bfloat16", "float16"):
            # verl/workers/config/engine.py:218
            yield subject.error("R28", key, "Megatron trains in bfloat16 or float16.", "Use bfloat16.")
    dtypes[f"{ROLLOUT}.dtype"] = subject.get(f"{ROLLOUT}.dtype")
    if len(set(dtypes.values())) > 1 and set(dtypes.values()) <= {"bfloat16", "float16"}:
        yield subject.warning(
            "R28",
            f"{ROLLOUT}.dtype",
            "actor, reference and rollout compute in different precisions: their log-probabilities differ.",
            "Use one for all.",
        )
    for name in ("fp16", "bf16"):
        if subject.get(f"{TRANSFORMER}.{name}") is not None:
            # megatron/core/transformer/transformer_config.py:917
            yield subject.error(
                "R28", f"{TRANSFORMER}.{name}", "the precision comes from dtype; with both set Megatron-core refuses.",
                f"Set {MEGATRON}.dtype.",
            )  # fmt: skip
    if subject.get(f"{TRANSFORMER}.gradient_accumulation_fusion") is True:
        # megatron/core/tensor_parallel/layers.py:924
        yield subject.warning(
            "R35",
            f"{TRANSFORMER}.gradient_accumulation_fusion",
            "needs APEX's or Transformer Engine's kernel on the nodes.",
        )


def _recompute(subject: Subject) -> Iterator[Finding]:
    # megatron/core/transformer/transformer_config.py:1140-1200
    granularity, method, layers, modules = (
        subject.get(f"{TRANSFORMER}.recompute_{name}") for name in ("granularity", "method", "num_layers", "modules")
    )
    key = f"{TRANSFORMER}.recompute_granularity"
    if subject.get(f"{TRANSFORMER}.cpu_offloading") is True:
        yield from _offloading(subject, granularity)
    if granularity is None:
        if method is not None or layers is not None:
            yield subject.warning(
                "R31",
                f"{TRANSFORMER}.recompute_method",
                "nothing is recomputed: recompute_granularity is null.",
                "Set it to full.",
            )
        return
    if granularity not in ("full", "selective"):
        yield subject.error("R31", key, "Megatron-core recomputes full or selective.", "Use full.")
        return
    if method not in (None, "uniform", "block") or (method is None and granularity == "full"):
        yield subject.error("R31", f"{TRANSFORMER}.recompute_method", "must be uniform or block.", "Use uniform.")
    if granularity == "selective":
        if layers is not None:
            yield subject.error(
                "R31",
                f"{TRANSFORMER}.recompute_num_layers",
                "selective recompute takes no number of layers.",
                "Use null.",
            )
        wrong = [name for name in modules or () if name not in RECOMPUTED]
        if wrong:
            yield subject.error(
                "R31", f"{TRANSFORMER}.recompute_modules", f"{', '.join(map(str, wrong))}: no such modules.",
                f"There are: {', '.join(RECOMPUTED)}.",
            )  # fmt: skip
    elif subject.count(f"{TRANSFORMER}.recompute_num_layers") is None:
        yield subject.error(
            "R31", f"{TRANSFORMER}.recompute_num_layers", "full recompute needs a number of layers.", "Use 1."
        )


def _offloading(subject: Subject, granularity: object) -> Iterator[Finding]:
    key = f"{TRANSFORMER}.cpu_offloading"
    if (subject.count(f"{MEGATRON}.pipeline_model_parallel_size") or 1) > 1:
        yield subject.error("R32", key, "Megatron-core offloads activations without pipeline parallelism only.")
    if granularity is not None:
        yield subject.error(
            "R32", key, "Megatron-core offloads activations without recompute only.", "Use one of the two."
        )


def _experts(subject: Subject) -> Iterator[Finding]:
    dispatcher = subject.get(f"{TRANSFORMER}.moe_token_dispatcher_type")
    key = f"{TRANSFORMER}.moe_token_dispatcher_type"
    if dispatcher is not None and dispatcher not in DISPATCHERS:
        # megatron/core/transformer/moe/moe_layer.py:219
        yield subject.error(
            "R33", key, "Megatron-core has no such dispatcher.", f"Use one of {', '.join(DISPATCHERS)}."
        )
    if subject.get(f"{TRANSFORMER}.moe_enable_deepep") is True and dispatcher != "flex":
        # megatron/core/transformer/transformer_config.py:1063
        yield subject.error(
            "R33", f"{TRANSFORMER}.moe_enable_deepep", "DeepEP needs the flex dispatcher.", f"Set {key}=flex."
        )
    layout = subject.layout
    if dispatcher == "flex" and layout is not None and layout.tensor_in_experts * layout.expert <= 1:
        # megatron/core/transformer/moe/token_dispatcher.py:1346
        yield subject.error("R33", key, "the flex dispatcher needs ETP x EP above 1.", "Use alltoall.")
    coefficient, balancing = (
        subject.get(f"{TRANSFORMER}.moe_{name}") for name in ("aux_loss_coeff", "router_load_balancing_type")
    )
    if coefficient and balancing in (None, "none"):
        # verl/workers/engine/megatron/transformer_impl.py:369 sets it to none
        yield subject.warning(
            "R34",
            f"{TRANSFORMER}.moe_aux_loss_coeff",
            "has no effect: verl turns the router's load balancing off.",
            f"Set {TRANSFORMER}.moe_router_load_balancing_type too.",
        )


def _corrections(subject: Subject) -> Iterator[Finding]:
    """What mbridge 0.15.1 sets otherwise than the model was made for (mbridge/models/mixtral.py:95, qwen2moe.py:61)."""
    if subject.model is None:
        return
    wrong = _not_corrected(subject, subject.model, ACTOR)
    if not wrong and subject.has_reference:  # which follows the actor, but where it has fields of its own
        wrong = _not_corrected(subject, subject.model, REF)
    for key, value in wrong.items():
        yield subject.error(
            "S19",
            key,
            f"mbridge builds another model than a {subject.model.name}: its outputs differ from the rollout's.",
            f"Add +{key}={value}.",
        )


def _not_corrected(subject: Subject, model: Architecture, role: str) -> dict[str, bool]:
    corrections = transformer_overrides(model.corrections, role)
    return {key: value for key, value in corrections.items() if subject.get(key) is not value}


def _attention_backend(subject: Subject) -> Iterator[Finding]:
    """Actor and reference live in one process, and Megatron-core keeps its choice in the process's environment."""
    if not subject.has_reference:
        return
    actors, own = (f"{role}.megatron.override_transformer_config.attention_backend" for role in (ACTOR, REF))
    wanted, given = subject.get(actors) or "auto", subject.get(own) or "auto"
    if wanted != given:
        # megatron/core/models/common/language_module/language_module.py:92
        yield subject.error(
            "S26",
            own,
            f"the actor's is {wanted}, this one {given}: with a field of its own, a reference follows in none.",
            f"Set {own}={wanted} too, or give the reference no field.",
        )


def _schedule(subject: Subject) -> Iterator[Finding]:
    # megatron/core/optimizer_param_scheduler.py:147-157
    key = f"{OPTIMIZER}.lr_warmup_steps"
    warmup = subject.count(key)
    total = subject.count(f"{OPTIMIZER}.lr_decay_steps") or subject.count("trainer.total_training_steps")
    steps = min(filter(None, [total, subject.count("trainer.total_training_steps")]), default=None)
    if warmup is not None and steps is not None and warmup >= steps:
        yield subject.error(
            "R47", key, f"the warm-up is not over when the run ends after {steps} steps.", f"Use less than {steps}."
        )
    style = subject.get(f"{OPTIMIZER}.lr_decay_style")
    if style not in DECAY_STYLES:
        yield subject.error(
            "R47",
            f"{OPTIMIZER}.lr_decay_style",
            "Megatron-core has none of that name.",
            f"Use one of {', '.join(DECAY_STYLES)}.",
        )
