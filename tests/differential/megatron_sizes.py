"""Builds Megatron-core's own models, one rank at a time, and counts their parameters; test_sizes.py beside it runs it.

No count here comes from `slipway`: this is the independent side of the comparison. mbridge describes the model as
verl has it do; `torch.distributed`'s fake backend stands for the other ranks, and the meta device for memory.
Standard input: a JSON list of {"config": content of a config.json, "world": ranks, "layout": arguments of
initialize_model_parallel, "extra": fields of TransformerConfig}. Standard output: for each, for each pipeline rank, the
parameters by kind, as JSON.
"""

import contextlib
import json
import sys

import torch
import torch.distributed as dist
from mbridge import AutoBridge
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.identity_op import IdentityOp
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig

import slipway.launch.verl_changes.registration  # noqa: F401  # corrects mbridge's DeepSeek-V3, as in every process of verl


class Replicated(torch.nn.Module):
    """Stands for Transformer Engine's linear layer, which Megatron gives `parallel_mode="duplicated"` in MLA."""

    def __init__(self, inputs: int, outputs: int, **arguments: object) -> None:
        super().__init__()
        assert arguments["parallel_mode"] == "duplicated"
        self.weight = torch.nn.Parameter(torch.empty(outputs, inputs, device="meta"))


def kind(name: str) -> str:
    """Return the kind of a parameter by its Megatron name."""
    if name.endswith("layernorm.weight") or "layer_norm" in name:
        return "norm"
    if name.startswith("embedding."):
        return "embedding"
    if name.startswith("output_layer."):
        return "output"
    if ".self_attention." in name:
        return "attention"
    if ".mlp.router." in name:
        return "router"
    return "experts" if ".mlp.experts." in name else "mlp"


def rank_parameters(case: dict, rank: int) -> dict[str, int]:
    """Build what one rank has, all of its model chunks."""
    hf = AutoConfig.for_model(**case["config"])
    hf.rope_theta = 10000.0  # mbridge 0.15.1 reads it where transformers 5 no longer has it
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=case["world"])
    parallel_state.initialize_model_parallel(create_gloo_process_groups=False, **case["layout"])
    try:
        bridge = AutoBridge.from_config(hf)
        bridge.set_extra_args(
            perform_initialization=False,
            masked_softmax_fusion=False,
            gradient_accumulation_fusion=False,
            # needs CUDA or Transformer Engine, and does not change a parameter
            sequence_parallel=False,
            moe_grouped_gemm=False,
            moe_shared_expert_overlap=False,
            persist_layer_norm=False,
            attention_backend="local",
            mtp_num_layers=None,  # as verl sets it unless multi-token prediction is switched on
            **case["extra"],
        )
        counts: dict[str, int] = {}
        chunks = case["layout"].get("virtual_pipeline_model_parallel_size")
        for chunk in range(chunks or 1):
            stage = chunk if chunks else None
            spec = get_gpt_decoder_block_spec(
                bridge.config, use_transformer_engine=False, normalization="RMSNorm", vp_stage=stage
            )
            for layer in spec.layer_specs:
                attention = layer.submodules.self_attention.submodules
                attention.core_attention = IdentityOp  # has no parameters; Megatron's own refuses context parallelism
                if hasattr(attention, "linear_kv_down_proj"):
                    attention.linear_q_down_proj = attention.linear_kv_down_proj = Replicated
            with contextlib.redirect_stdout(sys.stderr):
                model = GPTModel(
                    config=bridge.config,
                    transformer_layer_spec=spec,
                    pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
                    post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
                    share_embeddings_and_output_weights=hf.tie_word_embeddings,
                    vp_stage=stage,
                    **bridge._get_gptmodel_args(),
                )
            for name, parameter in model.named_parameters():
                counts[kind(name)] = counts.get(kind(name), 0) + parameter.numel()
        return counts
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def main() -> None:
    torch.cuda.current_device = lambda: torch.device("meta")
    torch.cuda.Stream = object  # the token dispatcher makes one
    torch.Tensor.cuda = lambda tensor: tensor  # a tied embedding's copies meet in an all-reduce
    multi_latent_attention.TELinear = Replicated
    results = []
    for case in json.load(sys.stdin):
        stages = case["layout"]["pipeline_model_parallel_size"]
        # Megatron's ranks of one pipeline stage are neighbours
        results.append([rank_parameters(case, stage * case["world"] // stages) for stage in range(stages)])
    print(json.dumps(results))


if __name__ == "__main__":
    main()
