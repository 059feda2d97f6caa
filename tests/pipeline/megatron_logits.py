"""Loads converted checkpoints into real Megatron models on two ranks, and saves their logits; test_convert.py runs it.

Nothing here comes from `slipway.convert`: this is the independent side of the comparison. DeepSeek-V3 is built by
verl's bridge, as Slipway corrects it; the others are described here.
Argument: a JSON file with {"folder": for results, "layouts": [[tp, pp, ep], ...], "tokens": [[id, ...], ...],
"models": {name: {"hf": folder, "checkpoint": folder}}}. Layouts are [TP, PP, EP]; EP is 1 for dense models.
"""

import json
import multiprocessing
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from mbridge import AutoBridge
from mbridge.core import llm_bridge
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.validation import StrictHandling
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import random
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe import moe_utils, token_dispatcher
from transformers import AutoConfig

import slipway.launch.verl_changes.registration  # noqa: F401  # as every process of verl does
from slipway.cpu import torch_cuda
from slipway.cpu.megatron import (
    cpu_layer_spec,
    patch_dispatcher,
    patch_mbridge,
    patch_router,
)

RANKS = 2


def experts_of(hf: dict) -> dict:
    """Return the settings of a mixture of experts as transformers computes it, from its own modelling code."""
    kind = hf["model_type"]
    count = hf.get("num_local_experts") or hf.get("num_experts") or hf.get("n_routed_experts")
    if not count:
        return {}
    return {
        "num_moe_experts": count,
        "moe_router_topk": hf["num_experts_per_tok"],
        "moe_ffn_hidden_size": hf.get("moe_intermediate_size") or hf["intermediate_size"],
        "moe_shared_expert_intermediate_size": hf.get("shared_expert_intermediate_size"),
        "moe_shared_expert_gate": kind == "qwen2_moe",
        # Qwen2-MoE weighs its experts by a softmax over all of them, the others over the chosen ones
        "moe_router_pre_softmax": kind == "qwen2_moe",
        "moe_router_load_balancing_type": "none",
        "moe_token_dispatcher_type": "alltoall",
        "moe_grouped_gemm": False,
    }


def build(folder: Path, tensor: int, pipeline: int, expert: int) -> GPTModel:
    hf = json.loads((folder / "config.json").read_text())
    if hf["model_type"] == "deepseek_v3":
        return build_by_bridge(folder)
    config = TransformerConfig(
        num_layers=hf["num_hidden_layers"],
        hidden_size=hf["hidden_size"],
        ffn_hidden_size=hf["intermediate_size"],
        num_attention_heads=hf["num_attention_heads"],
        num_query_groups=hf["num_key_value_heads"],
        kv_channels=hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"],
        layernorm_epsilon=hf["rms_norm_eps"],
        add_qkv_bias=hf["model_type"] in ("qwen2", "qwen2_moe"),
        qk_layernorm=hf["model_type"] in ("qwen3", "qwen3_moe"),
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=torch.float32,
        pipeline_dtype=torch.float32,
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        expert_model_parallel_size=expert,
        expert_tensor_parallel_size=1,
        sequence_parallel=tensor > 1 and bool(experts_of(hf)),
        **experts_of(hf),
        use_cpu_initialization=True,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
    )
    return GPTModel(
        config=config,
        transformer_layer_spec=cpu_layer_spec(get_gpt_decoder_block_spec(config, use_transformer_engine=False)),
        vocab_size=hf["vocab_size"],
        max_sequence_length=hf["max_position_embeddings"],
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        parallel_output=False,
        share_embeddings_and_output_weights=hf["tie_word_embeddings"],
        position_embedding_type="rope",
        rotary_base=hf["rope_parameters"]["rope_theta"],
    ).eval()


def build_by_bridge(folder: Path) -> GPTModel:
    """Build what verl does (MegatronEngine._build_tf_config), in float32 and without CUDA's kernels."""
    bridge = AutoBridge.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    bridge.set_extra_args(
        mtp_num_layers=None,
        attention_backend="auto",
        moe_grouped_gemm=False,
        moe_shared_expert_overlap=False,
        persist_layer_norm=False,
        use_cpu_initialization=True,
    )
    provider = bridge._model_provider([])
    model = provider(parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage())
    if model.post_process:
        model.output_layer.gather_output = True
    return model.eval()


@torch.no_grad()
def logits(model: GPTModel, tokens: torch.Tensor) -> torch.Tensor:
    """Return [batch, sequence, vocabulary] on the last stage, hidden states on the others."""
    if not model.pre_process:
        hidden = torch.empty(tokens.shape[1], tokens.shape[0], model.config.hidden_size)
        dist.recv(hidden, parallel_state.get_pipeline_model_parallel_prev_rank())
        model.set_input_tensor(hidden)
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    output = model(tokens, positions, attention_mask=None)
    if not model.post_process:
        dist.send(output.contiguous(), parallel_state.get_pipeline_model_parallel_next_rank())
    return output


def run_rank(rank: int, job: dict) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{job['folder']}/store", rank=rank, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    for tensor, pipeline, expert in job["layouts"]:
        parallel_state.initialize_model_parallel(
            tensor,
            pipeline,
            expert_model_parallel_size=expert,
            expert_tensor_parallel_size=1,
            create_gloo_process_groups=False,
        )
        random.model_parallel_cuda_manual_seed(0)  # sequence parallelism asks for it, though nothing is drawn
        for name, model in job["models"].items():
            hf = json.loads((Path(model["hf"]) / "config.json").read_text())
            if expert > 1 and not experts_of(hf):
                continue
            megatron = build(Path(model["hf"]), tensor, pipeline, expert)
            # as verl.utils.model.load_mcore_dist_weights does, but with a clear error about keys that are not there
            dist_checkpointing.load(
                megatron.sharded_state_dict(), model["checkpoint"], strict=StrictHandling.RAISE_UNEXPECTED
            )
            result = logits(megatron, torch.tensor(job["tokens"]))
            if megatron.post_process and parallel_state.get_tensor_model_parallel_rank() == 0:
                torch.save(result, Path(job["folder"]) / f"{name}-{tensor}-{pipeline}-{expert}.pt")
            dist.barrier()
        parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    torch_cuda.install()
    torch_cuda.redirect_megatron_rng(random)
    patch_router(moe_utils)
    patch_dispatcher(token_dispatcher)
    patch_mbridge(llm_bridge)
    # Importing Megatron takes seconds of CPU: once for all ranks.
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=run_rank, args=(rank, job)) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(max(abs(process.exitcode or 0) for process in ranks))


if __name__ == "__main__":
    main()
