"""Parameters on a rank, against Megatron-core's own models built from mbridge's own descriptions of them."""

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from slipway.models.architecture import dimensions_from_config
from slipway.models.layout import Layout
from slipway.models.sizes import Parameters, rank_parameters
from slipway.preflight.rules.divisibility import faults

TINY = {
    "num_hidden_layers": 8,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 320,
    "max_position_embeddings": 128,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
LATENT = {
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 3,
    "q_lora_rank": 40,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "num_key_value_heads": 8,
    "n_group": 1,
    "topk_group": 1,
}
MODELS = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "llama with biases": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": True},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen2 tied": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16},
    "qwen3 tied": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "head_dim": 16,
        "tie_word_embeddings": True,
    },
    "mixtral": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "qwen2 moe": {
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        "shared_expert_intermediate_size": 160,
        **EXPERTS,
    },
    "qwen3 moe": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "head_dim": 16, **EXPERTS},
    "deepseek v3": {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", **LATENT},
    "deepseek v3, queries not compressed": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        **LATENT,
        "q_lora_rank": None,
    },
}
LAYOUTS = {
    "one rank": Layout(1),
    "tp2": Layout(2, tensor=2),
    "tp8, more than key/value heads": Layout(8, tensor=8),
    "pp4": Layout(4, pipeline=4),
    "tp2 pp2 cp2": Layout(8, tensor=2, pipeline=2, context=2),
    "pp2 vpp2": Layout(2, pipeline=2, virtual_pipeline=2),
    "tp4 pp4 vpp2": Layout(16, tensor=4, pipeline=4, virtual_pipeline=2),
    "first 1, last 1": Layout(4, pipeline=4, first_stage_layers=1, last_stage_layers=1),
    "first 2 of pp3": Layout(3, pipeline=3, first_stage_layers=2),
    "last 4 of pp2": Layout(2, pipeline=2, last_stage_layers=4),
    "first 3, last 5 of pp2": Layout(2, pipeline=2, first_stage_layers=3, last_stage_layers=5),
    "first 2, last 2, vpp2 of pp4": Layout(
        4, pipeline=4, virtual_pipeline=2, first_stage_layers=2, last_stage_layers=2
    ),
    "embedding and loss as layers": Layout(5, pipeline=5, embedding_as_layer=True, loss_as_layer=True),
    "embedding and loss as layers, vpp5": Layout(
        2, pipeline=2, virtual_pipeline=5, embedding_as_layer=True, loss_as_layer=True
    ),
    "ep4": Layout(4, expert=4, expert_tensor=1),
    "tp4 ep2 etp2": Layout(4, tensor=4, expert=2, expert_tensor=2),
    "tp2 pp2 ep4 etp1": Layout(16, tensor=2, pipeline=2, expert=4, expert_tensor=1),
    "tp2 cp2 ep8 etp2 pp2": Layout(32, tensor=2, context=2, expert=8, expert_tensor=2, pipeline=2),
    "tp1 ep2 etp4": Layout(8, expert=2, expert_tensor=4),
}


def case(config: dict, layout: Layout) -> dict:
    return {
        "config": {key: value for key, value in config.items() if key != "architectures"},
        "world": layout.world,
        "layout": {
            "tensor_model_parallel_size": layout.tensor,
            "pipeline_model_parallel_size": layout.pipeline,
            "virtual_pipeline_model_parallel_size": layout.virtual_pipeline,
            "context_parallel_size": layout.context,
            "expert_model_parallel_size": layout.expert,
            "expert_tensor_parallel_size": layout.expert_tensor,
        },
        "extra": {
            "num_layers_in_first_pipeline_stage": layout.first_stage_layers,
            "num_layers_in_last_pipeline_stage": layout.last_stage_layers,
            "account_for_embedding_in_pipeline_split": layout.embedding_as_layer,
            "account_for_loss_in_pipeline_split": layout.loss_as_layer,
        },
    }


@pytest.mark.verl
def test_counts_are_those_of_megatrons_own_models():
    pairs = []
    for model, traits in MODELS.items():
        config = {**TINY, **traits}
        architecture = dimensions_from_config(config)
        for name, layout in LAYOUTS.items():
            if architecture.experts or layout.expert == 1:
                # sequence parallel as mbridge sets it
                pairs.append((f"{model}, {name}", config, architecture, replace(layout, sequence=layout.tensor > 1)))
    # every layout that the list means to try is one that Megatron takes
    assert {label: found for label, _, model, layout in pairs if (found := list(faults(layout, model)))} == {}
    built = subprocess.run(
        [sys.executable, Path(__file__).with_name("megatron_sizes.py")],
        input=json.dumps([case(config, layout) for _, config, _, layout in pairs]),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert built.returncode == 0, built.stderr[-3000:]
    wrong = {}
    for (label, _, architecture, layout), stages in zip(pairs, json.loads(built.stdout), strict=True):
        counted = [asdict(rank_parameters(architecture, layout, stage)) for stage in range(layout.pipeline)]
        if counted != [asdict(Parameters(**stage)) for stage in stages]:
            wrong[label] = (counted, stages)
    assert wrong == {}
    assert len(pairs) > 150
