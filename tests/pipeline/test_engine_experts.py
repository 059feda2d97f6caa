"""Mixtures of experts in verl's Megatron engine on the CPU backend: from a converted checkpoint to an export."""

import json
import shutil
from pathlib import Path

import engine_rank
import pytest
import small_models
import torch
from engine_runs import Result, assert_goes_against_the_gradient, differences, read_reference, run_engine
from safetensors.torch import load_file
from tiny_model import make_model
from transformers import PreTrainedModel

from slipway.convert.to_hf import ACTOR_WEIGHTS, write_model
from slipway.convert.to_megatron import CHECKPOINT, convert_megatron
from slipway.models.architecture import read_architecture

pytestmark = pytest.mark.verl

SIZES = {
    "vocab_size": 384,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
# Where verl puts weights below a checkpoint that its engine, not its trainer, saves.
SAVED_WEIGHTS = ACTOR_WEIGHTS.relative_to("actor")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("tokenizer"))


def make_mixture(kind: str, tokenizer: Path, folder: Path) -> Path:
    """Write a small model, converted too."""
    source = folder / kind
    shutil.copytree(tokenizer, source)
    torch.manual_seed(0)
    model = small_models.build(kind, SIZES)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3 if ".experts." in name else 0.1)
    make_choices_clear(model)
    # else the output layer's own gradient is almost all of the norm, which tells nothing of the experts' then
    torch.nn.init.normal_(model.lm_head.weight)
    torch.nn.init.constant_(model.model.norm.weight, 0.1)
    biases = {name: bias.clone() for name, bias in model.named_buffers() if name.endswith("e_score_correction_bias")}
    model.to(torch.bfloat16)
    for name, bias in biases.items():  # published in float32, as transformers itself keeps it
        model.get_submodule(name.rpartition(".")[0]).e_score_correction_bias = bias
    model.save_pretrained(source)
    convert_megatron(source, source / "megatron")
    return source


def make_choices_clear(model: PreTrainedModel) -> None:
    """Let the first elements of each token's embedding say which experts it goes to, and no layer change them.

    Otherwise some token is so near to two of them that rounding to bfloat16 sends it to the other one.
    """
    embedding = model.get_input_embeddings().weight.data
    routers = [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]
    experts = len(routers[0].weight)
    groups = getattr(model.config, "n_group", None) or experts  # experts of one group are chosen together
    torch.nn.init.normal_(embedding)
    for token in embedding:
        token[:experts] = torch.linspace(-3, 3, groups)[torch.randperm(groups)].repeat_interleave(experts // groups)
    for name, parameter in model.named_parameters():
        if name.removesuffix(".weight").endswith(("o_proj", "down_proj")):
            parameter.data[..., :experts, :] = 0
    for router in routers:
        torch.nn.init.normal_(router.weight, std=0.03)
        router.weight.data[:, :experts] += torch.eye(experts)
        if hasattr(router, "e_score_correction_bias"):
            torch.nn.init.uniform_(router.e_score_correction_bias, -0.01, 0.01)


def train(source: Path, folder: Path, *options: object, **layout: int) -> Result:
    """Train from the converted checkpoint; a run of Slipway has the same corrections."""
    corrections = json.dumps(dict(read_architecture(source).corrections))
    converted = source / "megatron" / CHECKPOINT
    return run_engine(source, folder, "run", "--converted", converted, "--transformer", corrections, *options, **layout)


def stored(folder: Path) -> dict:
    return load_file(folder / "model.safetensors")


def exported(checkpoint: Path, base: Path, folder: Path) -> dict:
    write_model(checkpoint / SAVED_WEIGHTS, base, folder, read_architecture(base))
    return stored(folder)


@pytest.fixture(scope="module")
def qwen(tokenizer, tmp_path_factory) -> Path:
    return make_mixture("qwen3-moe", tokenizer, tmp_path_factory.mktemp("qwen"))


@pytest.fixture(scope="module")
def single(qwen, tmp_path_factory):
    """One rank has all experts: a step, a checkpoint, another step."""
    folder = tmp_path_factory.mktemp("single")
    return folder, train(qwen, folder, "--train", 1, "--save", folder / "checkpoint", "--train-after", 1)


@pytest.fixture(scope="module")
def spread(qwen, tmp_path_factory):
    """The same by two ranks, each with half of the experts and of the batch."""
    folder = tmp_path_factory.mktemp("spread")
    options = ("--train", 1, "--save", folder / "checkpoint", "--train-after", 1)
    return folder, train(qwen, folder, *options, dp=2, ep=2)


def test_experts_train_from_a_converted_checkpoint(qwen, single):
    _, trained = single
    assert differences(stored(qwen), trained.weights["start"]) == {}
    assert_goes_against_the_gradient(qwen, trained)


def test_experts_spread_over_ranks_train_alike(qwen, single, spread):
    expected, trained = single[1], spread[1]
    assert differences(stored(qwen), trained.weights["start"]) == {}
    assert_goes_against_the_gradient(qwen, trained)
    # rank 0 has the first micro batch, and its mean is over half as many ranks' tokens
    for (first, _), of_rank in zip(expected.losses, trained.losses, strict=True):
        assert of_rank == pytest.approx([2 * first], rel=2**-8)
    assert trained.grad_norms == pytest.approx(expected.grad_norms, rel=2**-6)


def test_experts_that_every_rank_has_train_alike_and_are_saved_once(qwen, single, tmp_path):
    trained = train(qwen, tmp_path, "--train", 1, "--save", tmp_path / "checkpoint", dp=2)
    assert trained.grad_norms == pytest.approx(single[1].grad_norms[:1], rel=2**-6)
    assert_goes_against_the_gradient(qwen, trained)
    assert differences(exported(tmp_path / "checkpoint", qwen, tmp_path), trained.weights["saved"]) == {}


def test_experts_split_by_tensor_parallelism_train_alike(qwen, single, tmp_path):
    trained = train(qwen, tmp_path, "--train", 1, tp=2)
    assert differences(stored(qwen), trained.weights["start"]) == {}
    assert_goes_against_the_gradient(qwen, trained)
    assert trained.losses[0] == pytest.approx(single[1].losses[0], rel=2**-8)


def test_a_checkpoint_of_spread_experts_goes_on_under_the_layout(qwen, spread, tmp_path):
    folder, trained = spread
    resumed = train(qwen, tmp_path, "--load", folder / "checkpoint", "--train-after", 1, dp=2, ep=2)
    assert resumed.losses == trained.losses[1:]
    assert differences(resumed.weights["end"], trained.weights["end"]) == {}


@pytest.mark.parametrize("layout", ["single", "spread"])
def test_an_export_has_the_engines_own_weights(qwen, layout, request, tmp_path):
    folder, trained = request.getfixturevalue(layout)
    assert differences(exported(folder / "checkpoint", qwen, tmp_path), trained.weights["saved"]) == {}


@pytest.mark.parametrize("kind", ["qwen2-moe", "mixtral"])
def test_other_mixtures_train(kind, tokenizer, tmp_path):
    source = make_mixture(kind, tokenizer, tmp_path)
    trained = train(source, tmp_path, "--train", 1, "--save", tmp_path / "checkpoint")
    assert differences(stored(source), trained.weights["start"]) == {}
    assert_goes_against_the_gradient(source, trained)
    assert differences(exported(tmp_path / "checkpoint", source, tmp_path), trained.weights["end"]) == {}


@pytest.fixture(scope="module")
def deepseek(tokenizer, tmp_path_factory):
    """A dense layer and one of experts: two ranks make a step, save, and make another."""
    folder = tmp_path_factory.mktemp("deepseek")
    source = make_mixture("deepseek-v3", tokenizer, folder)
    options = ("--train", 1, "--save", folder / "checkpoint", "--train-after", 1)
    return folder, source, train(source, folder, *options, dp=2, ep=2)


def test_latent_attention_and_grouped_experts_train(deepseek):
    _, source, trained = deepseek
    assert differences(stored(source), trained.weights["start"]) == {}
    assert_goes_against_the_gradient(source, trained)


def test_latent_attention_and_grouped_experts_train_alike_under_tensor_parallelism(deepseek, tmp_path):
    _, source, spread = deepseek
    trained = train(source, tmp_path, "--train", 1, tp=2)
    assert differences(stored(source), trained.weights["start"]) == {}
    assert_goes_against_the_gradient(source, trained)
    assert trained.losses[0][0] == pytest.approx(spread.losses[0][0] / 2, rel=2**-8)


def test_a_routers_bias_moves_towards_experts_with_too_few_tokens(deepseek):
    """By 0.001 an update, whatever the gradient: mbridge's moe_router_bias_update_rate."""
    _, source, trained = deepseek
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    tokens = tokens_of_experts(source, layer=1)
    moved = trained.weights["saved"][name] - trained.weights["start"][name]
    # Megatron counts tokens in bfloat16, which knows 0.001 only so well
    torch.testing.assert_close(moved, 0.001 * (tokens.mean() - tokens).sign(), rtol=2**-9, atol=1e-8)


def tokens_of_experts(source: Path, layer: int) -> torch.Tensor:
    """Return how many of the batch's tokens go to each expert, by transformers."""
    reference = read_reference(source)
    chosen: list[torch.Tensor] = []
    mlp = reference.model.layers[layer].mlp
    mlp.experts.register_forward_pre_hook(lambda _module, inputs: chosen.append(inputs[1].flatten()))
    with torch.no_grad():
        for ids in engine_rank.batch()["input_ids"].unbind():
            reference(ids[None])
    return torch.cat(chosen).bincount(minlength=len(mlp.gate.weight)).float()


def test_a_routers_bias_survives_checkpoint_and_export(deepseek, tmp_path):
    folder, source, trained = deepseek
    assert differences(exported(folder / "checkpoint", source, tmp_path), trained.weights["saved"]) == {}
    resumed = train(source, tmp_path, "--load", folder / "checkpoint", "--train-after", 1, dp=2, ep=2)
    assert resumed.losses == trained.losses[1:]
    assert differences(resumed.weights["end"], trained.weights["end"]) == {}
