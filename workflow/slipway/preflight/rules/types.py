"""Rule R51: values of the kind that verl's own config has at that key.

OmegaConf checks no types in verl's config: text where a truth value belongs is taken for true, and a size that is no
whole number fails deep inside.
"""

from collections.abc import Iterator

from slipway.config.verl import ACTOR, REF, ROLLOUT
from slipway.config.verl_defaults import truth_values, verl_defaults
from slipway.preflight.findings import Finding
from slipway.preflight.subject import MEGATRON, Subject

SIZES = (
    "trainer.nnodes",
    "trainer.n_gpus_per_node",
    "data.train_batch_size",
    "data.max_prompt_length",
    "data.max_response_length",
    f"{ACTOR}.ppo_mini_batch_size",
    f"{ROLLOUT}.n",
    f"{ROLLOUT}.tensor_model_parallel_size",
    f"{ROLLOUT}.data_parallel_size",
    f"{ROLLOUT}.pipeline_model_parallel_size",
    f"{MEGATRON}.tensor_model_parallel_size",
    f"{MEGATRON}.pipeline_model_parallel_size",
    f"{MEGATRON}.context_parallel_size",
    f"{MEGATRON}.expert_model_parallel_size",
)
SIZES_OR_NULL = (
    f"{ACTOR}.ppo_micro_batch_size_per_gpu",
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    f"{REF}.log_prob_micro_batch_size_per_gpu",
    f"{ROLLOUT}.max_model_len",
    f"{MEGATRON}.virtual_pipeline_model_parallel_size",
    f"{MEGATRON}.expert_tensor_parallel_size",
    f"{MEGATRON}.override_transformer_config.num_layers_in_first_pipeline_stage",
    f"{MEGATRON}.override_transformer_config.num_layers_in_last_pipeline_stage",
)
NUMBERS = (
    f"{ROLLOUT}.temperature",
    f"{ROLLOUT}.top_p",
    f"{ROLLOUT}.gpu_memory_utilization",
    f"{ACTOR}.optim.lr",
    f"{ACTOR}.kl_loss_coef",
    f"{ACTOR}.entropy_coeff",
    f"{ACTOR}.clip_ratio",
)


def check(subject: Subject) -> Iterator[Finding]:
    """Yield values of the wrong kind."""
    if subject.on_megatron:
        yield from _sizes(subject)
    for key in NUMBERS:
        if key in subject.settings and subject.number(key) is None:
            yield subject.error("R51", key, "must be a number.")
    for key in truth_values():
        value = subject.get(key)
        # null leaves a truth value to verl
        if value is not None and not isinstance(value, bool):
            yield subject.error(
                "R51",
                key,
                "must be true or false; verl takes any text for true.",
                f"Use {str(verl_defaults()[key]).lower()}.",
            )


def _sizes(subject: Subject) -> Iterator[Finding]:
    for key in SIZES:
        if subject.count(key) is None:
            yield subject.error("R51", key, "must be a whole number above 0.")
    for key in SIZES_OR_NULL:
        if subject.get(key) is not None and subject.count(key) is None:
            yield subject.error("R51", key, "must be a whole number above 0, or null.")
