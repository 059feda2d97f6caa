"""The planner's answer in words: a layout's short name, its settings, and why the first is first."""

from slipway.config.verl import ACTOR, REF, ROLLOUT, transformer_overrides
from slipway.models.architecture import Architecture
from slipway.models.layout import Layout
from slipway.preflight.planning.search import Candidate, Ranking
from slipway.preflight.subject import LAYOUT_KEYS, MEGATRON, TRANSFORMER

_PARTS = {
    "rollout": "generation",
    "compute": "computation",
    "pipeline": "pipeline stages that wait or send",
    "tensor": "tensor parallel collectives",
    "context": "context parallel traffic",
    "expert": "traffic between experts",
    "data": "gradient reduction",
    "offload": "copies to host memory",
}


def describe(layout: Layout) -> str:
    """Return a layout in the field's short form."""
    parts = [f"TP {layout.tensor} PP {layout.pipeline}"]
    if layout.virtual_pipeline:
        parts.append(f"VPP {layout.virtual_pipeline}")
    if layout.context > 1:
        parts.append(f"CP {layout.context}")
    if layout.expert > 1 or layout.expert_tensor is not None:
        parts.append(f"EP {layout.expert} ETP {layout.tensor_in_experts}")
    parts.append(f"DP {layout.data}")
    if layout.first_stage_layers is not None:
        parts.append(f"(first/last stage {layout.first_stage_layers}/{layout.last_stage_layers} layers)")
    return " ".join(parts)


def why_first(ranking: Ranking) -> str:
    """Return what the first layout has over the next one, part by part."""
    if len(ranking.fitting) < 2:
        return "no other fits."
    first, second = ranking.fitting[:2]
    if second.tight and not first.tight:
        return f"{describe(second.layout)}, the next one, leaves less than a tenth of the memory free."
    mine, other = first.time.parts(), second.time.parts()
    saved = {part: other[part] - mine[part] for part in mine}
    gains = [f"{seconds:.1f} s of {_PARTS[part]}" for part, seconds in _largest(saved, 1)]
    losses = [f"{-seconds:.1f} s of {_PARTS[part]}" for part, seconds in _largest(saved, -1)]
    text = f"against {describe(second.layout)}, the next one, it saves {' and '.join(gains) or 'nothing'}"
    if losses:
        text += f", for {' and '.join(losses)} more"
    margin = second.time.total - first.time.total
    return f"{text}: {margin:.1f} s of {second.time.total:.1f} s a step."


def settings(candidate: Candidate, model: Architecture) -> list[str]:
    """Return the verl keys that make the layout, and the model what it was made for, as overrides of main_ppo."""
    layout, work = candidate.layout, candidate.work
    keys: dict[str, object] = {
        f"{MEGATRON}.{key}": getattr(layout, field)
        for field, key in LAYOUT_KEYS.items()
        if getattr(layout, field) not in (None, False)
    }
    keys |= {
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": work.micro_responses,
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": work.micro_responses,
        f"{REF}.log_prob_micro_batch_size_per_gpu": work.micro_responses,
        f"{ROLLOUT}.tensor_model_parallel_size": work.rollout_tensor,
        f"{ROLLOUT}.gpu_memory_utilization": work.rollout_share,
    }
    if work.recompute is not None:
        keys |= {
            f"{TRANSFORMER}.recompute_granularity": "full",
            f"{TRANSFORMER}.recompute_method": "uniform",
            f"{TRANSFORMER}.recompute_num_layers": 1,
        }
    switches = {
        f"{MEGATRON}.param_offload": work.param_offload,
        f"{MEGATRON}.optimizer_offload": work.optimizer_offload,
        f"{REF}.megatron.param_offload": work.reference_offload,
        f"+{ACTOR}.optim.override_optimizer_config.optimizer_cpu_offload": work.optimizer_on_cpu,
    }
    keys |= {key: True for key, on in switches.items() if on}
    keys |= transformer_overrides(model.corrections)
    # Hydra adds what verl's config does not name with a +
    added = ("num_layers_in", "account_for", *model.corrections)
    return [f"{'+' if any(word in key for word in added) else ''}{key}={value}" for key, value in keys.items()]


def _largest(saved: dict[str, float], sign: int) -> list[tuple[str, float]]:
    """Return the two largest gains (sign 1) or losses (sign -1) that are worth a word."""
    worth = [(part, seconds) for part, seconds in saved.items() if sign * seconds >= 0.05]
    return sorted(worth, key=lambda item: -sign * item[1])[:2]
