"""What a launcher has to set for a CPU run. Imports neither torch nor verl: the config resolver calls it."""

from collections.abc import Mapping

ROLLOUT_NAME = "transformers"
"""Name under which the rollout is registered with verl."""

Scalar = bool | int | float | str


def environment(gpus_per_node: int = 1, threads: int = 1) -> dict[str, str]:
    """Environment variables of every process of a CPU run; set before Python starts.

    `gpus_per_node` counts training ranks on this machine, as in `overrides`. `threads` is for one process; on a
    small machine one is best, because trainer, rollout and agent loops are processes that share the cores, and
    OpenMP's waiting threads take the core from those that work.
    """
    return {
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "slipway.cpu",
        # verl registers its Megatron engine for "cuda" only; this makes it pick that one.
        "VERL_ENGINE_DEVICE": "cuda",
        # Hides every GPU; an empty value would too, but Ray then refuses to pretend that there are any.
        "CUDA_VISIBLE_DEVICES": ",".join(["-1"] * gpus_per_node),
        # Otherwise Ray sets CUDA_VISIBLE_DEVICES for actors that hold one of the pretended GPUs.
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        # Compiling takes longer than these runs last, and dynamo traces through the replaced torch.cuda.
        "TORCHDYNAMO_DISABLE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def overrides(gpus_per_node: int = 1) -> dict[str, Scalar]:
    """Verl config values that the CPU backend needs, by dotted key.

    `gpus_per_node` counts training ranks on this machine: Ray is told of that many pretended GPUs.
    """
    return {
        "model_engine": "megatron",
        "trainer.device": "cpu",
        "actor_rollout_ref.model.use_remove_padding": True,
        # Default is Megatron-Bridge, which needs Transformer Engine.
        "actor_rollout_ref.actor.megatron.vanilla_mbridge": True,
        "actor_rollout_ref.ref.megatron.vanilla_mbridge": True,
        "actor_rollout_ref.rollout.name": ROLLOUT_NAME,
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
        # Fast and exact enough to compare with the trainer: bfloat16 has no fast kernels on most CPUs.
        "actor_rollout_ref.rollout.dtype": "float32",
        "actor_rollout_ref.rollout.agent.num_workers": 1,
        "reward.num_workers": 1,
        "data.dataloader_num_workers": 0,
        # Each storage unit is a process of its own; the default of eight costs 4 GiB.
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        **{f"ray_kwargs.ray_init.{name}": value for name, value in ray_node_options(gpus_per_node).items()},
        "ray_kwargs.ray_init.include_dashboard": False,
        # The reference model's config refers to the actor's.
        **{
            f"actor_rollout_ref.actor.megatron.override_transformer_config.{key}": value
            for key, value in _TRANSFORMER_CONFIG.items()
        },
    }


def ray_node_options(gpus_per_node: int = 1) -> dict[str, int]:
    """Resources of a node as Ray is told of them. Pretended: verl asks for three CPUs and one GPU a rank."""
    return {"num_cpus": 16 * gpus_per_node, "num_gpus": gpus_per_node, "object_store_memory": 300_000_000}


_TRANSFORMER_CONFIG: Mapping[str, Scalar] = {
    # Both fusions are CUDA extensions.
    "masked_softmax_fusion": False,
    "gradient_accumulation_fusion": False,
    # verl's default "flash" names a Transformer Engine kernel.
    "attention_backend": "local",
}


def hydra_overrides(gpus_per_node: int = 1) -> list[str]:
    """Return `overrides` in Hydra's command-line syntax; `++` because Ray's keys are not in verl's own config."""
    return [
        f"{'' if key == 'model_engine' else '++'}{key}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in overrides(gpus_per_node).items()
    ]
