"""What verl 0.9.1 and Megatron-core 0.16.1 themselves say to a case: their own code runs, on fake process groups.

Nothing here re-states a condition. Groups come from `MegatronEngine`'s own constructor, the model from its own
`_build_tf_config` and `_build_megatron_module` on the meta device with the CPU backend's layers, and batches go through
the workers' and trainer's own methods on objects with just the attributes that these read.
"""

import contextlib
import io
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from slipway.config.verl import _compose
from slipway.cpu.environment import environment

os.environ.update(environment())

import torch
import torch.distributed as dist
import verl  # noqa: F401  (before the backend, which registers its platform with it)

import slipway.cpu.plugin

slipway.cpu.plugin.install()

from megatron.core import parallel_state as mpu  # noqa: E402
from omegaconf import DictConfig, OmegaConf  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from transformers import Qwen2Config, Qwen3MoeConfig  # noqa: E402
from verl.trainer.ppo.v1.trainer_base import PPOTrainer  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402
from verl.utils.config import omega_conf_to_dataclass, validate_config  # noqa: E402
from verl.workers.engine.megatron import transformer_impl  # noqa: E402
from verl.workers.engine.megatron.transformer_impl import MegatronEngine  # noqa: E402
from verl.workers.engine_workers import TrainingWorker  # noqa: E402

import slipway.cpu.megatron  # noqa: E402
from differential.draw import ACTOR, LENGTH, MEGATRON, REF, ROLLOUT, Case  # noqa: E402

# Megatron warns at every weight that its generators of CPU and GPU are one, which they are here.
logging.getLogger("megatron.core.tensor_parallel.random").setLevel(logging.ERROR)

_new_group = dist.new_group


def _all_gather_own(gathered: list[Any], own: Any, group: Any = None) -> None:
    """Every rank has the same responses; the fake backend moves nothing."""
    gathered[:] = [own] * len(gathered)


dist.all_gather_object = _all_gather_own


class _Attention(torch.nn.Module):
    """In place of the attention between projections, which has no weights: the CPU's refuses context parallelism."""

    def __init__(self, *_args: Any, **_options: Any) -> None:
        super().__init__()


slipway.cpu.megatron.CpuAttention = _Attention


@dataclass(frozen=True)
class Answer:
    """Whether the stack takes a case; if not, at which step and with which words."""

    accepts: bool
    step: str = ""
    error: str = ""


def ask(case: Case) -> Answer:
    """Return what the real stack says to a case."""
    step = "config"
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            config = _config(case)
            validate_config(config, use_reference_policy=True, use_critic=False)
            for rank in _ranks(case):
                step = "groups"
                with _fake_world(rank, case.world):
                    engine = _engine(case, config)
                    step = "transformer config"
                    engine._build_tf_config()
                    engine.bridge.load_weights = lambda *_args, **_options: None  # there are none
                    step = "model"
                    with torch.device("meta"):
                        engine._build_megatron_module()
                    if rank == 0:
                        step = "batches"
                        _run_batches(config, engine)
    except Exception as error:  # whatever the stack raises would have ended the training
        return Answer(False, step, f"{type(error).__name__}: {error}")
    return Answer(True)


def _config(case: Case) -> DictConfig:
    config = _base_config().copy()
    log_prob = case.keys[f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu"]
    for key, value in (case.keys | {f"{REF}.log_prob_micro_batch_size_per_gpu": log_prob}).items():
        OmegaConf.update(config, key, value, merge=False)
    return config


_base: list[DictConfig] = []


def _base_config() -> DictConfig:
    """Return verl's own config with what no case changes."""
    if not _base:
        config = _compose().copy()
        OmegaConf.set_struct(config, False)
        fixed = {
            "algorithm.adv_estimator": "grpo",
            "critic.enable": False,
            f"{ROLLOUT}.name": "vllm",
            f"{ACTOR}.use_kl_loss": True,
            f"{MEGATRON}.vanilla_mbridge": True,
            # forward only: DDP's buffers would have to be real memory
            f"{MEGATRON}.forward_only": True,
            # CPU layers have neither Transformer Engine's grouped experts nor CUDA's fused kernels
            f"{MEGATRON}.override_transformer_config.moe_grouped_gemm": False,
            f"{MEGATRON}.override_transformer_config.gradient_accumulation_fusion": False,
            f"{MEGATRON}.override_transformer_config.persist_layer_norm": False,
            f"{MEGATRON}.override_transformer_config.attention_backend": "local",
        }
        for key, value in fixed.items():
            OmegaConf.update(config, key, value, merge=False, force_add=True)
        _base.append(config)
    return _base[0]


def _ranks(case: Case) -> list[int]:
    """Return the first rank, the last, and one of a middle stage."""
    return sorted({0, case.world // 2, case.world - 1})


@contextlib.contextmanager
def _fake_world(rank: int, world: int) -> Iterator[None]:
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())

    def new_fake_group(ranks: Any = None, **_options: Any) -> Any:
        return _new_group(ranks, backend="fake")  # Megatron asks for gloo twins of its groups too

    dist.new_group = new_fake_group
    try:
        yield
    finally:
        dist.new_group = _new_group
        mpu.destroy_model_parallel()
        dist.destroy_process_group()


def _engine(case: Case, config: DictConfig) -> MegatronEngine:
    model = case.model
    sizes = {
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "intermediate_size": model.intermediate_size,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_positions,
        "tie_word_embeddings": model.tied_embeddings,
    }
    hf_config: Any
    if model.experts:
        hf_config = Qwen3MoeConfig(
            **sizes,
            head_dim=model.head_dim,
            num_experts=model.experts,
            num_experts_per_tok=2,
            moe_intermediate_size=model.expert_intermediate_size,
        )
    else:
        hf_config = Qwen2Config(**sizes)
    model_config = _ModelConfig(
        hf_config=hf_config,
        model_type="language_model",
        share_embeddings_and_output_weights=model.tied_embeddings,
        mtp=SimpleNamespace(enable=False),
        local_path="",
    )
    actor = config.actor_rollout_ref.actor
    return MegatronEngine(
        model_config, omega_conf_to_dataclass(actor.megatron), omega_conf_to_dataclass(actor.optim), None
    )


class _ModelConfig(SimpleNamespace):
    """The part of verl's `HFModelConfig` that the engine reads: a file on disk is needed for the whole."""

    def get(self, key: str, default: Any = None) -> Any:
        return getattr(self, key, default)


def _run_batches(config: DictConfig, engine: MegatronEngine) -> None:
    """Let verl pad a step's responses and split them: trainer, then log-probabilities, then mini batches."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    ranks = engine.get_data_parallel_size()
    trainer = SimpleNamespace(use_critic=False, config=config, global_steps=1)
    multiple = PPOTrainer._get_required_batch_multiple(trainer, ranks)
    responses = config.data.train_batch_size * rollout.n
    rows = -(-responses // multiple) * multiple // ranks  # upsample_batch_to_divisible_size
    tokens = actor.ppo_max_token_len_per_gpu, rollout.log_prob_max_token_len_per_gpu
    _split(engine, _rows(rows, rollout.log_prob_micro_batch_size_per_gpu, actor.use_dynamic_bsz, tokens[1]))
    batch = _rows(rows, actor.ppo_micro_batch_size_per_gpu, actor.use_dynamic_bsz, tokens[0])
    tu.assign_non_tensor(batch, mini_batch_size=actor.ppo_mini_batch_size * rollout.n)
    TrainingWorker.train_mini_batch(_Worker(engine), batch)


def _rows(count: int, micro: int, dynamic: bool, tokens: int) -> Any:
    """Return responses of the greatest length, with what the engine reads to make micro batches."""
    columns = {"loss_mask": torch.zeros(count, 1)}
    if dynamic:
        sequences = [torch.zeros(LENGTH, dtype=torch.long) for _ in range(count)]
        columns["input_ids"] = torch.nested.as_nested_tensor(sequences, layout=torch.jagged)
    settings = {"use_dynamic_bsz": dynamic, "micro_batch_size_per_gpu": micro, "max_token_len_per_gpu": tokens}
    return tu.get_tensordict(tensor_dict=columns, non_tensor_dict=settings)


class _SplitUp(Exception):
    """The engine has its micro batches and would now compute."""


def _split(engine: MegatronEngine, data: Any) -> None:
    """Run the engine's pass up to where the pipeline schedule would begin."""
    with contextlib.suppress(_SplitUp):
        engine.forward_backward_batch(data, None)


def _stop_before_schedule() -> None:
    raise _SplitUp


transformer_impl.get_forward_backward_func = _stop_before_schedule


class _Worker:
    """A training worker whose engine splits batches and computes nothing."""

    def __init__(self, engine: MegatronEngine) -> None:
        self._splits = engine
        self.engine = SimpleNamespace(
            get_data_parallel_size=engine.get_data_parallel_size,
            get_data_parallel_rank=engine.get_data_parallel_rank,
            get_data_parallel_group=engine.get_data_parallel_group,
            train_mode=lambda **_options: contextlib.nullcontext(),
            is_mp_src_rank_with_outputs=lambda: False,
        )
        self.profiler = SimpleNamespace(step=lambda: None)

    def train_batch(self, data: Any) -> None:
        _split(self._splits, data)
