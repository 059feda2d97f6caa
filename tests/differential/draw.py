"""Random training configurations: a tiny model, a world, and verl keys. Mostly valid, then perhaps perturbed."""

import random
from dataclasses import dataclass, replace
from typing import Any

from slipway.models.architecture import Architecture

ACTOR = "actor_rollout_ref.actor"
MEGATRON = f"{ACTOR}.megatron"
ROLLOUT = "actor_rollout_ref.rollout"
REF = "actor_rollout_ref.ref"
TRANSFORMER = f"{MEGATRON}.override_transformer_config"
FIRST, LAST = (f"{TRANSFORMER}.num_layers_in_{end}_pipeline_stage" for end in ("first", "last"))
COUNTED = tuple(f"{TRANSFORMER}.account_for_{what}_in_pipeline_split" for what in ("embedding", "loss"))
RECOMPUTE = f"{TRANSFORMER}.recompute"

# Share of cases that are changed in one or two places, so that about half of all cases are refused.
PERTURBED_SHARE = 0.55
# Tokens of every prompt with its response.
LENGTH = 16


@dataclass(frozen=True)
class Case:
    """One configuration: what the model is, and the verl keys that differ from verl's defaults."""

    seed: int
    model: Architecture
    keys: dict[str, Any]

    @property
    def world(self) -> int:
        """Ranks that train."""
        return int(self.keys["trainer.nnodes"]) * int(self.keys["trainer.n_gpus_per_node"])


def draw(seed: int) -> Case:
    """Return the case of a seed; equal seeds give equal cases."""
    rng = random.Random(seed)
    case = _fitting(seed, rng)
    if rng.random() < PERTURBED_SHARE:
        for _ in range(rng.choice([1, 1, 2])):
            case = _perturbed(case, rng)
    return case


def _fitting(seed: int, rng: random.Random) -> Case:
    """Draw sizes that are made to fit each other."""
    tensor, pipeline, context, data = (
        rng.choice(sizes) for sizes in ([1, 2, 4], [1, 1, 2, 3, 4], [1, 1, 2], [1, 2, 3])
    )
    world = tensor * pipeline * context * data
    chunks = rng.choice([None, None, 1, 2]) if pipeline > 1 else None
    expert = rng.choice([1, 2, 3]) if rng.random() < 0.4 else None  # None: a dense model
    expert_tensor = None if expert is None else rng.choice([None, 1, 2])
    kv_heads = tensor * rng.choice([1, 2])
    heads = kv_heads * rng.choice([1, 2])
    model = Architecture(
        name="Qwen3MoeForCausalLM" if expert else "Qwen2ForCausalLM",
        layers=pipeline * (chunks or 1) * rng.choice([1, 2]),
        hidden_size=8 * heads,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=8,
        intermediate_size=16 * tensor,
        expert_intermediate_size=16 * tensor if expert else 0,
        vocab_size=12 * tensor * rng.choice([1, 3]),
        max_positions=64,
        tied_embeddings=rng.random() < 0.3,
        experts=(expert or 0) * rng.choice([2, 4]),
    )
    micro = rng.choice([1, 2, 3])
    samples = rng.choice([2, 3, 4, 8])
    mini = data * micro * rng.choice([1, 2])
    keys: dict[str, Any] = {
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": world,
        "data.train_batch_size": mini * rng.choice([1, 2, 3]),
        "data.max_prompt_length": LENGTH // 2,
        "data.max_response_length": LENGTH // 2,
        f"{ROLLOUT}.prompt_length": LENGTH // 2,
        f"{ROLLOUT}.response_length": LENGTH // 2,
        f"{ROLLOUT}.n": samples,
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": micro,
        f"{ACTOR}.ppo_mini_batch_size": mini,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": micro,
        f"{MEGATRON}.tensor_model_parallel_size": tensor,
        f"{MEGATRON}.pipeline_model_parallel_size": pipeline,
        f"{MEGATRON}.virtual_pipeline_model_parallel_size": chunks,
        f"{MEGATRON}.context_parallel_size": context,
        f"{MEGATRON}.expert_model_parallel_size": expert or 1,
        f"{MEGATRON}.expert_tensor_parallel_size": expert_tensor,
    }
    keys |= _nodes(rng, world) | _recompute(rng) | _dynamic(rng)
    if not expert:  # with experts it has to be on, which shows at the first update only
        keys[f"{MEGATRON}.sequence_parallel"] = rng.choice([True, True, False])
    split, layers = _uneven(rng, pipeline, model.layers)
    return Case(seed, replace(model, layers=layers), keys | split)


def _nodes(rng: random.Random, world: int) -> dict[str, Any]:
    nodes = rng.choice([size for size in (1, 1, 2, 3) if world % size == 0])
    return {"trainer.nnodes": nodes, "trainer.n_gpus_per_node": world // nodes}


def _uneven(rng: random.Random, pipeline: int, layers: int) -> tuple[dict[str, Any], int]:
    """Return keys of a split over stages that is not even, sometimes, and the layers that the model then has."""
    kind = rng.choice(["even"] * 3 + ["ends", "counted"])
    if pipeline == 1 or kind == "even":
        return {}, layers
    if kind == "counted":
        keys = {key: True for key in COUNTED if rng.random() < 0.6}
        return keys, layers - len(keys) if layers > pipeline else layers
    first, last = rng.choice([None, 1, 2, layers // pipeline]), rng.choice([None, 1, 2, layers // pipeline])
    middle = pipeline - (first is not None) - (last is not None)
    if middle < 0:
        return {}, layers
    keys = {key: size for key, size in ((FIRST, first), (LAST, last)) if size is not None}
    return keys, max(1, (first or 0) + (last or 0) + middle * rng.choice([1, 2]))


def _recompute(rng: random.Random) -> dict[str, Any]:
    granularity = rng.choice([None] * 8 + ["full"] * 4 + ["selective"] * 3 + ["some"])
    if granularity is None:
        return {}
    method, layers = rng.choice(["uniform", "block"]), rng.choice([1, 2])
    if granularity == "selective":
        method, layers = rng.choice([None, method]), None
    if rng.random() < 0.2:
        method, layers = rng.choice([None, "every"]), rng.choice([None, 1])
    return {f"{RECOMPUTE}_granularity": granularity, f"{RECOMPUTE}_method": method, f"{RECOMPUTE}_num_layers": layers}


def _dynamic(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.7:
        return {}
    keys: dict[str, Any] = {
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ROLLOUT}.log_prob_use_dynamic_bsz": True,
        f"{REF}.log_prob_use_dynamic_bsz": True,
    }
    for key in (
        f"{ACTOR}.ppo_max_token_len_per_gpu",
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
        f"{REF}.log_prob_max_token_len_per_gpu",
    ):
        keys[key] = rng.choice([LENGTH // 2, *[LENGTH, LENGTH * 5 // 2, 3 * LENGTH, 20 * LENGTH] * 3])
    return keys


def _perturbed(case: Case, rng: random.Random) -> Case:
    """Return the case with one size of the model or the config replaced."""
    of_model = ("layers", "heads", "intermediate_size", "expert_intermediate_size", "vocab_size", "experts")
    name = rng.choice([*of_model, *filter(_is_size, case.keys)])
    if name in of_model:
        model = case.model
        if "expert" in name and not model.experts:
            return case
        least = 2 if name == "experts" else 1  # a token is routed to two
        value = max(least, getattr(model, name) + rng.choice([-2, -1, 1, 2]))
        if name == "heads":  # a multiple of kv_heads, or the model itself would be none
            kv_heads = rng.choice([kv for kv in range(1, value + 1) if value % kv == 0])
            return replace(case, model=replace(model, heads=value, kv_heads=kv_heads, hidden_size=8 * value))
        return replace(case, model=replace(model, **{name: value}))
    if name.endswith("virtual_pipeline_model_parallel_size") or name.endswith("expert_tensor_parallel_size"):
        value = rng.choice([None, 1, 2, 3])
    elif name == f"{ROLLOUT}.n":
        value = rng.choice([2, 3, 5, 7])
    else:
        value = max(1, case.keys[name] + rng.choice([-3, -2, -1, 1, 2, 3, 4]))
    return replace(case, keys=case.keys | {name: value})


def _is_size(key: str) -> bool:
    """Whether a key's value is one of the sizes that may be moved; lengths and switches stay as drawn."""
    fixed = ("trainer.nnodes", "length", "dynamic", "recompute", "account_for", "sequence_parallel", "token_len")
    return not any(word in key for word in fixed)
