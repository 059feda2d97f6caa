"""The maps of tensors, against transformers' own models: which tensors there are, of which shape, each once."""

from dataclasses import replace

import pytest
import small_models
import torch

from slipway.models.architecture import Architecture, architecture_from_config, read_architecture
from slipway.models.maps import MAPS, Layout
from slipway.models.names import extra_state_keys, hugging_face_shapes, is_left_out, megatron_shapes, pieces
from slipway.models.weights import read_tensors

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
KINDS = pytest.mark.parametrize("kind", sorted(small_models.CLASSES))


def name_of(kind: str) -> str:
    """The architecture's name: that of its class."""
    return small_models.CLASSES[kind][1].__name__


def architecture(kind: str, tied: bool = False) -> Architecture:
    return architecture_from_config(small_models.settings(kind, DIMENSIONS, tied) | {"architectures": [name_of(kind)]})


@KINDS
@TIED
def test_the_map_has_the_tensors_that_transformers_saves(kind, tied, tmp_path):
    model = small_models.build(kind, DIMENSIONS, tied)
    model.save_pretrained(tmp_path)  # experts lie otherwise in memory
    assert hugging_face_shapes(architecture(kind, tied)) == {
        key: tensor.shape for key, tensor in read_tensors(tmp_path).items()
    }
    assert read_architecture(tmp_path) == architecture(kind, tied)
    assert architecture(kind, tied).parameter_count == sum(parameter.numel() for parameter in model.parameters())


def test_every_supported_architecture_is_tested():
    assert {name_of(kind) for kind in small_models.CLASSES} == set(MAPS)


@KINDS
@TIED
def test_no_tensor_has_two_places(kind, tied):
    model = architecture(kind, tied)
    placed = [(piece.key, piece.index) for piece in pieces(model)]
    named = [part for piece in pieces(model) for part in piece.names]
    assert len(placed) == len(set(placed))
    assert len(named) == len(set(named))
    assert not [part for part in named if "{" in part]


@KINDS
@TIED
def test_megatron_holds_as_many_elements(kind, tied):
    model = architecture(kind, tied)
    shapes = megatron_shapes(model)
    buffers = model.experts * (model.layers - model.dense_layers) if model.latent else 0  # biases of the router
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == model.parameter_count + buffers
    for key, shape in shapes.items():
        inner = list(shape)
        if not model.latent:  # whose layers have keys of their own
            assert (inner.pop(0) == model.layers) == key.startswith("decoder.layers."), key
        assert (inner[:1] == [model.experts]) == (".experts." in key or "router" in key), key
    assert ("output_layer.weight" in shapes) != tied


def test_parts_of_one_tensor_lie_along_its_first_axis():
    fused = {piece.key: piece for piece in pieces(architecture("qwen2")) if piece.index == (1,)}
    qkv = fused["decoder.layers.self_attention.linear_qkv.weight"]
    assert qkv.layout is Layout.GROUPED_QKV
    assert qkv.names == tuple(f"model.layers.1.self_attn.{part}_proj.weight" for part in "qkv")
    assert qkv.shape == (60 + 20 + 20, 48)
    assert fused["decoder.layers.self_attention.linear_qkv.bias"].shape == (100,)
    gate_up = fused["decoder.layers.mlp.linear_fc1.weight"]
    assert gate_up.names == ("model.layers.1.mlp.gate_proj.weight", "model.layers.1.mlp.up_proj.weight")
    assert gate_up.shape == (88, 48)


@pytest.mark.parametrize("kind", [kind for kind in sorted(small_models.CLASSES) if not kind.startswith("deepseek")])
def test_each_layer_and_expert_has_its_module_states_and_the_final_norm_one(kind):
    model, keys = architecture(kind), extra_state_keys(architecture(kind))
    tensors = MAPS[name_of(kind)]
    states, experts = tensors.extra_states, tensors.expert_states
    assert len(keys) == len(set(keys)) == 3 * len(states) + 3 * model.experts * len(experts) + 1
    assert keys[0] == f"{states[0]}._extra_state/shard_0_3"
    assert keys[-1] == "decoder.final_layernorm._extra_state/shard_0_1"
    if model.experts:
        assert f"{experts[0]}._extra_state/shard_2.3_3.4" in keys
    weights = {weight.module for weight in tensors.weights}
    assert {*states, *experts} <= weights  # no module without a weight


def test_layers_that_differ_have_the_states_of_their_own_modules():
    keys = extra_state_keys(architecture("deepseek-v3"))
    assert len(keys) == len(set(keys))

    def of_layer(number):
        prefix, suffix = f"decoder.layers.{number}.", "._extra_state/shard_0_1"
        return {key[len(prefix) : -len(suffix)] for key in keys if key.startswith(prefix) and key.endswith(suffix)}

    attention = {
        f"self_attention.linear_{part}" for part in ("q_down_proj", "q_up_proj", "kv_down_proj", "kv_up_proj", "proj")
    } | {"input_layernorm"}
    assert of_layer(0) == attention | {"mlp.linear_fc1", "mlp.linear_fc2"}
    shared = {"mlp.shared_experts.linear_fc1", "mlp.shared_experts.linear_fc2"}
    assert of_layer(1) == of_layer(2) == attention | shared | {"pre_mlp_layernorm"}
    experts = [key for key in keys if ".experts." in key]
    assert len(experts) == 2 * 8 * 2
    assert "decoder.layers.2.mlp.experts.experts.linear_fc1._extra_state/shard_7_8" in experts
    whole = extra_state_keys(architecture("deepseek-v3-whole-queries"))
    assert "decoder.layers.0.self_attention.linear_q_proj._extra_state/shard_0_1" in whole
    assert not [key for key in whole if "linear_q_down_proj" in key or "linear_q_up_proj" in key]


def test_only_what_megatron_does_not_have_is_left_out():
    tied, untied = architecture("llama", True), architecture("llama")
    assert is_left_out("lm_head.weight", tied)
    assert not is_left_out("lm_head.weight", untied)
    assert is_left_out("model.layers.0.self_attn.rotary_emb.inv_freq", untied)
    assert not is_left_out("model.embed_tokens.weight", tied)
    further = replace(architecture("deepseek-v3"), further_token_layers=1)
    assert is_left_out("model.layers.3.embed_tokens.weight", further)
    assert not is_left_out("model.layers.2.input_layernorm.weight", further)
    assert not is_left_out("model.layers.4.input_layernorm.weight", further)
    assert not is_left_out("model.layers.3.embed_tokens.weight", architecture("deepseek-v3"))
