"""The maps of tensors, against transformers' own models: which tensors there are, of which shape, each once."""

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from slipway.models.architecture import Architecture, architecture_from_config, read_architecture
from slipway.models.maps import MAPS, Layout
from slipway.models.names import extra_state_keys, hugging_face_shapes, is_redundant, megatron_shapes, pieces
from slipway.models.weights import read_tensors

CLASSES = {
    "LlamaForCausalLM": (LlamaConfig, LlamaForCausalLM),
    "Qwen2ForCausalLM": (Qwen2Config, Qwen2ForCausalLM),
    "Qwen3ForCausalLM": (Qwen3Config, Qwen3ForCausalLM),
    "MistralForCausalLM": (MistralConfig, MistralForCausalLM),
    "MixtralForCausalLM": (MixtralConfig, MixtralForCausalLM),
    "Qwen2MoeForCausalLM": (Qwen2MoeConfig, Qwen2MoeForCausalLM),
    "Qwen3MoeForCausalLM": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
}
EXPERTS = {"num_experts_per_tok": 2}
FURTHER = {
    "MistralForCausalLM": {"sliding_window": None},
    "MixtralForCausalLM": {"num_local_experts": 5, **EXPERTS},
    "Qwen2MoeForCausalLM": {
        "num_experts": 5, "moe_intermediate_size": 18, "shared_expert_intermediate_size": 22, **EXPERTS
    },
    "Qwen3MoeForCausalLM": {"num_experts": 5, "moe_intermediate_size": 18, "norm_topk_prob": True, **EXPERTS},
}  # fmt: skip
# every dimension another number, so that none can stand for another
DIMENSIONS = {
    "num_hidden_layers": 3,
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 44,
    "vocab_size": 52,
    "max_position_embeddings": 64,
}
TIED = pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
NAMES = pytest.mark.parametrize("name", sorted(MAPS))


def architecture(name: str, tied: bool = False) -> Architecture:
    further = FURTHER.get(name, {})
    return architecture_from_config({**DIMENSIONS, **further, "architectures": [name], "tie_word_embeddings": tied})


@NAMES
@TIED
def test_the_map_has_the_tensors_that_transformers_saves(name, tied, tmp_path):
    config_class, model_class = CLASSES[name]
    model = model_class(config_class(**DIMENSIONS, **FURTHER.get(name, {}), tie_word_embeddings=tied))
    model.save_pretrained(tmp_path)  # experts lie otherwise in memory
    assert hugging_face_shapes(architecture(name, tied)) == {
        key: tensor.shape for key, tensor in read_tensors(tmp_path).items()
    }
    assert read_architecture(tmp_path) == architecture(name, tied)
    assert architecture(name, tied).parameter_count == sum(parameter.numel() for parameter in model.parameters())


def test_every_supported_architecture_is_tested():
    assert set(CLASSES) == set(MAPS)


@NAMES
@TIED
def test_no_tensor_has_two_places(name, tied):
    model = architecture(name, tied)
    placed = [(piece.key, piece.index) for piece in pieces(model)]
    named = [part for piece in pieces(model) for part in piece.names]
    assert len(placed) == len(set(placed))
    assert len(named) == len(set(named))
    assert not [part for part in named if "{" in part]


@NAMES
@TIED
def test_megatron_holds_as_many_elements(name, tied):
    model = architecture(name, tied)
    shapes = megatron_shapes(model)
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == model.parameter_count
    for key, shape in shapes.items():
        assert (shape[0] == model.layers) == key.startswith("decoder.layers."), key
        assert (shape[1:2] == (model.experts,)) == (".experts." in key or "router" in key), key
    assert ("output_layer.weight" in shapes) != tied


def test_parts_of_one_tensor_lie_along_its_first_axis():
    fused = {piece.key: piece for piece in pieces(architecture("Qwen2ForCausalLM")) if piece.index == (1,)}
    qkv = fused["decoder.layers.self_attention.linear_qkv.weight"]
    assert qkv.layout is Layout.GROUPED_QKV
    assert qkv.names == tuple(f"model.layers.1.self_attn.{part}_proj.weight" for part in "qkv")
    assert qkv.shape == (60 + 20 + 20, 48)
    assert fused["decoder.layers.self_attention.linear_qkv.bias"].shape == (100,)
    gate_up = fused["decoder.layers.mlp.linear_fc1.weight"]
    assert gate_up.names == ("model.layers.1.mlp.gate_proj.weight", "model.layers.1.mlp.up_proj.weight")
    assert gate_up.shape == (88, 48)


@NAMES
def test_each_layer_and_expert_has_its_module_states_and_the_final_norm_one(name):
    model, keys = architecture(name), extra_state_keys(architecture(name))
    states, experts = MAPS[name].extra_states, MAPS[name].expert_states
    assert len(keys) == len(set(keys)) == 3 * len(states) + 3 * model.experts * len(experts) + 1
    assert keys[0] == f"{states[0]}._extra_state/shard_0_3"
    assert keys[-1] == "decoder.final_layernorm._extra_state/shard_0_1"
    if model.experts:
        assert f"{experts[0]}._extra_state/shard_2.4_3.5" in keys
    weights = {weight.key.rpartition(".")[0] for weight in MAPS[name].weights}
    assert {*states, *experts} <= weights  # no module without a weight


def test_only_what_says_nothing_new_is_redundant():
    tied, untied = architecture("LlamaForCausalLM", True), architecture("LlamaForCausalLM")
    assert is_redundant("lm_head.weight", tied)
    assert not is_redundant("lm_head.weight", untied)
    assert is_redundant("model.layers.0.self_attn.rotary_emb.inv_freq", untied)
    assert not is_redundant("model.embed_tokens.weight", tied)
