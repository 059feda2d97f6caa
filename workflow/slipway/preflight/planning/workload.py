"""What a step of a training asks of the machine: lengths, batches, and the switches that trade time for memory."""

from dataclasses import dataclass, replace

from slipway.config.verl import ACTOR, REF, ROLLOUT
from slipway.preflight.subject import MEGATRON, TRANSFORMER, Subject


@dataclass(frozen=True)
class Recompute:
    """Layers that are computed again in the backward pass (full recomputation)."""

    layers: int | None = None
    """How many of a pipeline stage's; None: all."""
    chunk: int = 1
    """Layers that are computed again together, and then there at once."""


@dataclass(frozen=True)
class Workload:
    """One step of GRPO with verl; lengths in tokens."""

    prompts: int
    """Prompts a step."""
    samples: int
    """Responses a prompt."""
    mini_batch: int
    """Prompts an optimizer step."""
    prompt_length: int
    response_length: int
    """The longest; forecasts take every response for that long."""
    micro_tokens: int
    """Tokens of a micro batch of an update, context parallelism not yet divided."""
    log_prob_tokens: int
    """The same of a pass for log-probabilities."""
    micro_responses: int | None = None
    """Responses of a micro batch; None: they are made by tokens."""
    has_reference: bool = True
    with_entropy: bool = False
    """Whether entropy is computed in an update."""
    recompute: Recompute | None = None
    """None: activations are kept."""
    materializes_logits: bool = True
    """Whether the output layer's result is held, which verl's fused kernels avoid."""
    param_offload: bool = False
    """Whether weights and gradients leave the GPU while the rollout engine works."""
    optimizer_offload: bool = False
    reference_offload: bool = False
    optimizer_on_cpu: bool = False
    """Whether the optimizer works in host memory, for good."""
    rollout_sleeps: bool = True
    """Whether the rollout engine gives its memory back while the trainer works."""
    distributed_optimizer: bool = True
    rollout_tensor: int = 1
    rollout_share: float = 0.5
    """Share of a GPU's memory that the rollout engine takes."""
    bucket: float = 2 * 2**30
    """Bytes of the buffer that carries weights to the rollout engine."""

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        return self.prompt_length + self.response_length

    @property
    def responses(self) -> int:
        """Responses a step."""
        return self.prompts * self.samples

    @property
    def updates(self) -> int:
        """Optimizer steps a step."""
        return -(-self.prompts // self.mini_batch)

    def with_micro_batch(self, responses: int) -> "Workload":
        """Return the same work in micro batches of so many of the longest responses."""
        tokens = responses * self.length
        return replace(self, micro_tokens=tokens, log_prob_tokens=tokens, micro_responses=responses)


def workload_of(subject: Subject) -> Workload | None:
    """Return what a verl config asks for; None where a size that it takes is missing or no number."""
    sizes = [
        subject.count(key)
        for key in (
            "data.train_batch_size",
            f"{ROLLOUT}.n",
            f"{ACTOR}.ppo_mini_batch_size",
            f"{ROLLOUT}.prompt_length",
            f"{ROLLOUT}.response_length",
            f"{ROLLOUT}.tensor_model_parallel_size",
        )
    ]
    if None in sizes or _beyond_the_forecast(subject):
        return None
    prompts, samples, mini, prompt, response, rollout_tensor = (size or 0 for size in sizes)
    micro, log_prob = _micro_tokens(subject, prompt + response)
    if micro is None or log_prob is None:
        return None
    return Workload(
        prompts=prompts,
        samples=samples,
        mini_batch=mini,
        prompt_length=prompt,
        response_length=response,
        micro_tokens=micro,
        log_prob_tokens=log_prob,
        micro_responses=None if subject.is_dynamic else micro // (prompt + response),
        has_reference=subject.has_reference,
        with_entropy=subject.get(f"{ACTOR}.calculate_entropy") is True
        or bool(subject.number(f"{ACTOR}.entropy_coeff")),
        recompute=_recompute(subject),
        materializes_logits=subject.get("actor_rollout_ref.model.use_fused_kernels") is not True,
        rollout_sleeps=subject.get(f"{ROLLOUT}.free_cache_engine") is not False,
        param_offload=subject.get(f"{MEGATRON}.param_offload") is True,
        optimizer_offload=subject.get(f"{MEGATRON}.optimizer_offload") is True,
        reference_offload=subject.get(f"{REF}.megatron.param_offload") is True,
        optimizer_on_cpu=_optimizer_on_cpu(subject),
        distributed_optimizer=subject.get(f"{MEGATRON}.use_distributed_optimizer") is not False,
        rollout_tensor=rollout_tensor,
        rollout_share=subject.number(f"{ROLLOUT}.gpu_memory_utilization") or 0.5,
        bucket=(subject.count(f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes") or 2048) * 2**20,
    )


def _beyond_the_forecast(subject: Subject) -> bool:
    """Whether a launch does what the forecast has no terms for: low-rank adaptation, recomputing parts of a layer."""
    model = "actor_rollout_ref.model"
    low_rank = any(subject.number(f"{model}.{key}") for key in ("lora_rank", "lora.rank"))
    modules = subject.get(f"{TRANSFORMER}.recompute_modules") or ["core_attn"]
    parts = subject.get(f"{TRANSFORMER}.recompute_granularity") == "selective" and modules != ["core_attn"]
    return low_rank or parts


def _recompute(subject: Subject) -> Recompute | None:
    if subject.get(f"{TRANSFORMER}.recompute_granularity") != "full":
        return None
    layers = subject.count(f"{TRANSFORMER}.recompute_num_layers") or 1
    if subject.get(f"{TRANSFORMER}.recompute_method") == "block":  # the first so many of a stage
        return Recompute(layers=layers)
    return Recompute(chunk=layers)


def _optimizer_on_cpu(subject: Subject) -> bool:
    options = f"{ACTOR}.optim.override_optimizer_config"
    fraction = subject.number(f"{options}.optimizer_offload_fraction")
    return subject.get(f"{options}.optimizer_cpu_offload") is True and (fraction is None or fraction >= 1)


def _micro_tokens(subject: Subject, length: int) -> tuple[int | None, int | None]:
    """Return the most tokens of a micro batch in an update and in a pass for log-probabilities."""
    if subject.is_dynamic:
        context = subject.count(f"{MEGATRON}.context_parallel_size") or 1
        tokens = [
            subject.count(key)
            for key in (f"{ACTOR}.ppo_max_token_len_per_gpu", f"{ROLLOUT}.log_prob_max_token_len_per_gpu")
        ]
        return tokens[0] and tokens[0] * context, tokens[1] and tokens[1] * context
    responses = [
        subject.count(key)
        for key in (f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu")
    ]
    return responses[0] and responses[0] * length, responses[1] and responses[1] * length
