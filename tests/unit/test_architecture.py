"""Dimensions are read from config.json as transformers reads them, and what Megatron would get wrong is refused."""

import json
from pathlib import Path

import pytest
from small_models import LATENT

from slipway.errors import SlipwayError
from slipway.models.architecture import architecture_from_config, read_architecture

QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "num_hidden_layers": 28,
    "hidden_size": 1536,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "intermediate_size": 8960,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}
_MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
QWEN3_MOE = {**QWEN2, **_MOE, "architectures": ["Qwen3MoeForCausalLM"], "norm_topk_prob": True}
QWEN2_MOE = {**QWEN2, **_MOE, "architectures": ["Qwen2MoeForCausalLM"], "shared_expert_intermediate_size": 96}
DEEPSEEK = {
    **{key: value for key, value in LATENT.items() if key != "rope_parameters"},
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "intermediate_size": 96,
    "vocab_size": 320,
    "max_position_embeddings": 128,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
}
YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 1.0}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}


@pytest.mark.parametrize(
    ("config", "parameters"),
    # what their model cards say, and transformers counts: Qwen2.5-1.5B, Qwen3-8B, Llama-2-7b
    [(QWEN2, 1_543_714_304), (QWEN3, 8_190_735_360), (LLAMA, 6_738_415_616)],
    ids=["qwen2", "qwen3", "llama"],
)
def test_the_parameters_of_published_models_are_counted_exactly(config, parameters):
    assert architecture_from_config(config).parameter_count == parameters


def test_keys_that_old_files_leave_out_have_transformers_defaults():
    llama = architecture_from_config(LLAMA)
    assert (llama.kv_heads, llama.head_dim, llama.tied_embeddings) == (32, 128, False)
    # heads of Qwen3 are wider than hidden_size / heads, whether config.json says so or not
    assert architecture_from_config({**QWEN3, "hidden_size": 1024, "num_attention_heads": 16}).head_dim == 128
    silent = {key: value for key, value in QWEN3.items() if key != "head_dim"}
    assert architecture_from_config({**silent, "hidden_size": 1024, "num_attention_heads": 16}).head_dim == 128


@pytest.mark.parametrize("value", [None, 0, -1, 1.5, "28", True, []])
def test_a_size_that_is_no_whole_number_is_named(value):
    with pytest.raises(SlipwayError, match=r"num_hidden_layers is .*, but must be a whole number above 0"):
        architecture_from_config({**QWEN2, "num_hidden_layers": value})


def test_sizes_that_contradict_each_other_are_named():
    with pytest.raises(SlipwayError, match="num_attention_heads 12 is not a multiple of num_key_value_heads 5"):
        architecture_from_config({**QWEN2, "num_key_value_heads": 5})
    with pytest.raises(SlipwayError, match="hidden_size 1535 is not a multiple of num_attention_heads 12"):
        architecture_from_config({**QWEN2, "hidden_size": 1535})
    with pytest.raises(SlipwayError, match="vocab_size is missing"):
        architecture_from_config({key: value for key, value in QWEN2.items() if key != "vocab_size"})


@pytest.mark.parametrize("names", ["Qwen2ForCausalLM", [["Qwen2ForCausalLM"]], {"a": 1}, [None]])
def test_architectures_that_are_no_list_of_names_are_refused(names):
    with pytest.raises(SlipwayError, match=r"architectures is .*, but must be a list of names"):
        architecture_from_config({**QWEN2, "architectures": names})


@pytest.mark.parametrize("names", [[], None, ["GPT2LMHeadModel"]])
def test_other_architectures_are_refused_with_those_that_work(names):
    with pytest.raises(SlipwayError, match=r"not supported; supported are .*LlamaForCausalLM, MistralForCausalLM"):
        architecture_from_config({**QWEN2, "architectures": names})


@pytest.mark.parametrize(
    ("base", "changes", "said"),
    [
        # Llama 3.1 and later; in the words of transformers 5, and of 4
        (LLAMA, {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "rope_theta": 5e5}}, "rope type 'llama3'"),
        (LLAMA, {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope type 'llama3'"),
        (QWEN2, {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope type 'yarn'"),
        (QWEN2, {"use_sliding_window": True, "sliding_window": 4096}, "a window of tokens only"),
        (QWEN3, {"layer_types": ["full_attention", "sliding_attention"]}, "a window of tokens only"),
        (LLAMA, {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        (LLAMA, {"attention_bias": True}, "attention_bias is True"),
        (LLAMA, {"mlp_bias": True}, "mlp_bias is True"),
        (QWEN3_MOE, {"norm_topk_prob": False}, "norm_topk_prob is False"),
        (QWEN3_MOE, {"mlp_only_layers": [0]}, "some of its layers have no experts"),
        (QWEN2_MOE, {"norm_topk_prob": True}, "norm_topk_prob is True"),
        (QWEN2_MOE, {"qkv_bias": False}, "qkv_bias is False"),
        (QWEN3, {"attention_bias": True}, "attention_bias is True"),
        (QWEN3, {"quantization_config": {"quant_method": "awq"}}, "quantization_config says that its weights are"),
        (DEEPSEEK, {"quantization_config": {"quant_method": "fp8"}}, r"write this one as such .* remove quantization"),
        (DEEPSEEK, {"norm_topk_prob": False}, "norm_topk_prob is False"),
        (
            DEEPSEEK,
            {"scoring_func": "softmax"},
            "scoring_func is 'softmax'.* use a model whose scoring_func is sigmoid",
        ),
        (DEEPSEEK, {"topk_method": "greedy"}, "topk_method is 'greedy'"),
        (DEEPSEEK, {"moe_layer_freq": 2}, "moe_layer_freq is 2"),
        (DEEPSEEK, {"num_key_value_heads": 2}, "num_key_value_heads is 2, but latent attention"),
        (DEEPSEEK, {"n_shared_experts": 0}, "n_shared_experts is 0"),
        (DEEPSEEK, {"num_experts_per_tok": 6}, "topk_group is 2 and num_experts_per_tok 6, .*topk_group 3"),
        (DEEPSEEK, {"rope_scaling": {"type": "linear", "factor": 4.0}}, "rope type 'linear'.* is default or yarn"),
        (DEEPSEEK, {"rope_scaling": YARN | {"factor": None}}, "factor of its YaRN position embedding is None"),
        (DEEPSEEK, {"rope_scaling": YARN | {"attention_factor": 1.2}}, "attention_factor 1.2"),
        (DEEPSEEK, {"rope_scaling": YARN | {"mscale": 0}}, "mscale 0 and mscale_all_dim 1.0"),
    ],
)
def test_what_verls_megatron_model_leaves_out_is_refused(base, changes, said):
    with pytest.raises(SlipwayError, match=said):
        architecture_from_config({**base, **changes}, "config.json")


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "layer_types": ["full_attention"] * 28},
        {"rope_theta": 1e6, "rope_scaling": None, "use_sliding_window": False, "sliding_window": 131072},
        {"hidden_act": "silu", "max_window_layers": 21},
    ],
)
def test_what_it_computes_is_not_refused(changes):
    assert architecture_from_config({**QWEN2, **changes}).layers == 28


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": YARN, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1},
        {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 6},  # one group leaves nothing to rank
        {"q_lora_rank": None, "num_nextn_predict_layers": 1, "first_k_dense_replace": 9},
    ],
)
def test_what_it_computes_of_deepseek_v3_is_not_refused(changes):
    assert architecture_from_config({**DEEPSEEK, **changes}).layers == 4


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"{", "not JSON"), (b"\xff\xfe", "not JSON"), (b"[1]", "no JSON object"), (None, "not a model in Hugging Face")],
)
def test_a_damaged_file_is_named(tmp_path: Path, content, said):
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(SlipwayError, match=rf"config\.json.*{said}"):
        read_architecture(tmp_path)


def test_a_good_file_is_read(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN2))
    assert read_architecture(tmp_path) == architecture_from_config(QWEN2)
