"""Random training configurations: a tiny model, a world, and verl keys. Mostly valid, then perhaps perturbed."""

import random
from dataclasses import dataclass, replace
from typing import Any

from slipway.models.architecture import Architecture

ACTOR = "actor_rollout_ref.actor"
MEGATRON = f"{ACTOR}.megatron"
ROLLOUT = "actor_rollout_ref.rollout"
REF = "actor_rollout_ref.ref"

# Share of cases that are changed in one or two places, so that about half of all cases are refused.
PERTURBED_SHARE = 0.8


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
    return Case(seed, model, keys)


def _perturbed(case: Case, rng: random.Random) -> Case:
    """Return the case with one size of the model or the config replaced."""
    of_model = ("layers", "heads", "intermediate_size", "expert_intermediate_size", "vocab_size", "experts")
    name = rng.choice([*of_model, *(key for key in case.keys if key != "trainer.nnodes")])
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
