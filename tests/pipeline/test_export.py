"""Export: what training wrote comes out in the shape of the base model, bit for bit, or not at all.

The trained checkpoint is made by the converter, whose truth test_convert.py proves against Megatron itself.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import small_models
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2ForCausalLM

from slipway.convert.to_hf import ACTOR_WEIGHTS, export_hf
from slipway.convert.to_megatron import CHECKPOINT, TENSORS, convert_megatron
from slipway.errors import SlipwayError
from slipway.manifest import open_product, read_manifest
from slipway.models.weights import INDEX, read_tensors, tensor_digests, weights_digest

DIMENSIONS = {
    "vocab_size": 90,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


@dataclass
class Trained:
    """A base model, the model that a training made of it, and the training's folder."""

    base: Path
    model: Path
    train: Path


def make(
    folder: Path,
    kind: str = "qwen2",
    tied: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    shard: str = "1GB",
    noise: float = 0.1,
    vocab_multiple: int = 1,
) -> Trained:
    """Make a base model of `dtype` and a training that moved all weights by `noise` and saved them in bfloat16."""
    torch.manual_seed(0)
    model = small_models.build(kind, DIMENSIONS, tied)
    model.to(dtype).save_pretrained(folder / "base", max_shard_size=shard)
    (folder / "base/tokenizer.json").write_text("{}")
    (folder / "base/README.md").write_text("the base model's own card")
    for parameter in model.parameters():
        parameter.data += noise * torch.randn(parameter.shape).to(dtype)
    model.to(torch.bfloat16).save_pretrained(folder / "trained")
    convert_megatron(folder / "trained", folder / "megatron", vocab_multiple)
    train = folder / "train"
    checkpoint = train / "checkpoints/global_step_7" / ACTOR_WEIGHTS
    shutil.copytree(folder / "megatron" / CHECKPOINT, checkpoint)
    publish(train)
    return Trained(folder / "base", folder / "trained", train)


def publish(train: Path) -> None:
    checkpoint = train / "checkpoints/global_step_7" / ACTOR_WEIGHTS
    with open_product("train", train / "manifest.json", train, {"x": 1}) as product:
        product.publish(
            [checkpoint / ".metadata", checkpoint / "metadata.json"], {"checkpoint": "checkpoints/global_step_7"}
        )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llama", {}),
        ("qwen2", {}),
        ("qwen2", {"tied": True}),
        ("qwen3", {}),
        ("mixtral", {}),
        ("qwen2-moe", {"shard": "10KB"}),
        ("qwen3-moe", {"shard": "10KB"}),
        ("deepseek-v3", {"shard": "10KB"}),
        ("qwen2", {"shard": "10KB"}),
        ("qwen2", {"dtype": torch.float32}),
        ("qwen2", {"vocab_multiple": 64}),
    ],
    ids=[
        *("llama", "qwen2", "tied", "qwen3", "mixtral", "qwen2-moe", "qwen3-moe", "deepseek-v3"),
        *("sharded", "float32", "padded"),
    ],
)
def test_what_was_trained_comes_out_in_the_shape_of_the_base(tmp_path, kind, options):
    made = make(tmp_path, kind, **options)
    export_hf(made.train, made.base, tmp_path / "out")
    before, after, trained = weights(made.base), weights(tmp_path / "out"), weights(made.model)
    assert after.keys() == before.keys() == trained.keys()
    for name, tensor in after.items():
        assert tensor.dtype == before[name].dtype
        assert torch.equal(tensor.to(torch.bfloat16), trained[name]), name
    files = {path.name for path in made.base.glob("*.safetensors")}
    assert {path.name for path in (tmp_path / "out").glob("*.safetensors")} == files
    for name in ("config.json", "tokenizer.json", *([INDEX] if len(files) > 1 else [])):
        assert (tmp_path / "out" / name).read_bytes() == (made.base / name).read_bytes()
    assert not (tmp_path / "out/README.md").exists()  # it tells of another model


def test_transformers_loads_it_and_computes_what_the_trained_model_does(tmp_path):
    made = make(tmp_path, shard="10KB")
    export_hf(made.train, made.base, tmp_path / "out")
    tokens = torch.arange(9)[None]
    exported, trained = (
        Qwen2ForCausalLM.from_pretrained(path)(tokens).logits for path in (tmp_path / "out", made.model)
    )
    assert torch.equal(exported, trained)


def test_a_tied_output_layer_that_is_stored_follows_the_embedding(tmp_path):
    made = make(tmp_path, tied=True)
    stored = load_file(made.base / "model.safetensors")
    stored["lm_head.weight"] = stored["model.embed_tokens.weight"].clone()
    stored["model.rotary_emb.inv_freq"] = torch.arange(4.0)
    save_file(stored, made.base / "model.safetensors", metadata={"format": "pt"})
    export_hf(made.train, made.base, tmp_path / "out")
    after, trained = weights(tmp_path / "out"), weights(made.model)
    assert torch.equal(after["lm_head.weight"], trained["model.embed_tokens.weight"])
    assert torch.equal(after["model.rotary_emb.inv_freq"], torch.arange(4.0))


def test_layers_that_predict_further_tokens_stay_those_of_the_base(tmp_path):
    """As DeepSeek-V3 is published: such a layer after the last, and the router's bias in float32 beside bfloat16."""
    made = make(tmp_path, "deepseek-v3")
    config = json.loads((made.base / "config.json").read_text())
    (made.base / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    stored = load_file(made.base / "model.safetensors")
    bias = "model.layers.2.mlp.gate.e_score_correction_bias"
    stored[bias] = stored[bias].float() + 0.1
    further = {f"model.layers.3.{name}": torch.randn(5, 3) for name in ("eh_proj.weight", "mlp.gate.weight")}
    save_file(stored | further, made.base / "model.safetensors", metadata={"format": "pt"})
    export_hf(made.train, made.base, tmp_path / "out")
    after, trained = weights(tmp_path / "out"), weights(made.model)
    assert after.keys() == stored.keys() | further.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in further.items())
    assert after[bias].dtype == torch.float32
    assert torch.equal(after[bias], trained[bias].float())
    facts = read_manifest(tmp_path / "out/manifest.json", "export_hf").facts
    assert facts["changed"] == len(stored) - 1  # the other layer's bias was not trained
    convert_megatron(made.base, tmp_path / "converted")
    converted = json.loads((tmp_path / "converted" / TENSORS).read_text())
    assert converted.keys() == stored.keys()
    assert converted[bias]["dtype"] == "F32"


def test_the_manifest_says_what_changed_and_the_digest_of_the_weights(tmp_path):
    made = make(tmp_path)
    export_hf(made.train, made.base, tmp_path / "out")
    facts = read_manifest(tmp_path / "out/manifest.json", "export_hf").facts
    tensors = read_tensors(tmp_path / "out")
    assert facts["tensors"] == facts["changed"] == len(tensors) == 3 * 12 + 3
    assert facts["checkpoint"] == "checkpoints/global_step_7"
    assert facts["weights"] == weights_digest(tensors, tensor_digests(tmp_path / "out", tensors))


def test_a_second_export_does_nothing_and_a_damaged_one_is_made_again(tmp_path):
    made = make(tmp_path)
    out = tmp_path / "out"
    export_hf(made.train, made.base, out)
    manifest, file = (out / "manifest.json").read_bytes(), out / "model.safetensors"
    content, time = file.read_bytes(), file.stat().st_mtime_ns
    (out / "manifest.json").unlink()
    export_hf(made.train, made.base, out)
    assert file.stat().st_mtime_ns == time
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    (out / "model-00001-of-00009.safetensors").write_bytes(b"left by a killed export")
    export_hf(made.train, made.base, out)
    assert file.read_bytes() == content
    assert [path.name for path in out.glob("*.safetensors")] == ["model.safetensors"]
    assert (out / "manifest.json").read_bytes() == manifest


def test_a_training_that_changed_nothing_is_refused(tmp_path):
    made = make(tmp_path, noise=0.0)
    with pytest.raises(SlipwayError, match="the training changed nothing"):
        export_hf(made.train, made.base, tmp_path / "out")
    assert not (tmp_path / "out/manifest.json").exists()


ROUTER_BIAS = "model.layers.2.mlp.gate.e_score_correction_bias"


def save_with_router_bias(made: Trained, moved: float) -> None:
    """Write the trained checkpoint again, with a router's bias in float32, as Megatron keeps it."""
    stored = load_file(made.model / "model.safetensors")
    stored[ROUTER_BIAS] = stored[ROUTER_BIAS].float() + moved
    save_file(stored, made.model / "model.safetensors", metadata={"format": "pt"})
    convert_megatron(made.model, made.train / "again")
    checkpoint = made.train / "checkpoints/global_step_7" / ACTOR_WEIGHTS
    shutil.rmtree(checkpoint)
    shutil.copytree(made.train / "again" / CHECKPOINT, checkpoint)
    publish(made.train)


def test_a_training_that_moved_a_routers_bias_alone_is_refused(tmp_path):
    """Every update moves it, with a learning rate of zero too."""
    made = make(tmp_path, "deepseek-v3", noise=0.0)
    save_with_router_bias(made, 0.001)
    with pytest.raises(SlipwayError, match="the training changed nothing"):
        export_hf(made.train, made.base, tmp_path / "out")


def test_a_routers_bias_is_rounded_to_the_bases_type_and_that_is_said(tmp_path, caplog):
    made = make(tmp_path, "deepseek-v3")
    save_with_router_bias(made, 1.001)
    export_hf(made.train, made.base, tmp_path / "out")
    assert torch.equal(weights(tmp_path / "out")[ROUTER_BIAS], torch.full((8,), 1.001, dtype=torch.bfloat16))
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"{ROUTER_BIAS} is rounded to torch.bfloat16, which the base model has it in"
    ]


def test_a_float32_base_that_was_only_rounded_has_not_changed(tmp_path):
    made = make(tmp_path, dtype=torch.float32, noise=0.0)
    with pytest.raises(SlipwayError, match="the training changed nothing"):
        export_hf(made.train, made.base, tmp_path / "out")


def test_weights_that_are_not_finite_are_refused(tmp_path):
    made = make(tmp_path, noise=float("nan"))
    with pytest.raises(SlipwayError, match="infinite or undefined elements"):
        export_hf(made.train, made.base, tmp_path / "out")
    assert not (tmp_path / "out/manifest.json").exists()


def test_an_incomplete_training_is_refused(tmp_path):
    made = make(tmp_path)
    (made.train / "manifest.json").unlink()
    with pytest.raises(SlipwayError, match="missing; rule train writes it"):
        export_hf(made.train, made.base, tmp_path / "out")


@pytest.mark.parametrize("damage", ["missing", "cut off", "metadata", "unpickled"])
def test_a_damaged_checkpoint_is_named(tmp_path, damage):
    made = make(tmp_path)
    checkpoint = made.train / "checkpoints/global_step_7" / ACTOR_WEIGHTS
    largest = max(checkpoint.glob("*.distcp"), key=lambda path: path.stat().st_size)
    match damage:
        case "missing":
            largest.unlink()
        case "cut off":
            largest.write_bytes(largest.read_bytes()[:100])
        case "metadata":
            (checkpoint / "metadata.json").unlink()
        case "unpickled":
            (checkpoint / ".metadata").write_bytes(b"nothing that was pickled")
            publish(made.train)  # as if it had been so when training ended
    with pytest.raises(SlipwayError, match="global_step_7"):
        export_hf(made.train, made.base, tmp_path / "out")
    assert not (tmp_path / "out/manifest.json").exists()


def test_another_base_model_is_refused(tmp_path):
    made = make(tmp_path)
    config = json.loads((made.base / "config.json").read_text())
    (made.base / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    with pytest.raises(SlipwayError, match=r"has shape \[3, .* makes it \[2, "):
        export_hf(made.train, made.base, tmp_path / "out")


def test_an_earlier_step_is_exported_once_even_when_its_checkpoint_is_gone_and_the_training_goes_on(tmp_path):
    made = make(tmp_path)
    earlier = made.train / "checkpoints/global_step_3"
    shutil.copytree(made.train / "checkpoints/global_step_7", earlier)
    export_hf(made.train, made.base, tmp_path / "of-3", step=3)
    assert (
        read_manifest(tmp_path / "of-3/manifest.json", "export_hf").facts["checkpoint"] == "checkpoints/global_step_3"
    )
    assert weights(tmp_path / "of-3").keys() == weights(made.model).keys()
    before = (tmp_path / "of-3/manifest.json").read_bytes()

    shutil.rmtree(earlier)
    with open_product("train", made.train / "manifest.json", made.train, {"x": 1, "steps": 9}) as product:
        product.publish([], {"checkpoint": "checkpoints/global_step_9"})
    (tmp_path / "of-3/manifest.json").unlink()
    export_hf(made.train, made.base, tmp_path / "of-3", step=3)
    assert (tmp_path / "of-3/manifest.json").read_bytes() == before
    with pytest.raises(SlipwayError, match=r"global_step_4: no such checkpoint; those of steps 7 are there"):
        export_hf(made.train, made.base, tmp_path / "of-4", step=4)


def test_other_weights_of_an_earlier_step_are_exported_anew(tmp_path):
    made = make(tmp_path / "one")
    export_hf(made.train, made.base, tmp_path / "model", step=7)
    before = read_manifest(tmp_path / "model/manifest.json", "export_hf").facts["weights"]
    other = make(tmp_path / "two", noise=0.2)
    shutil.rmtree(made.train / "checkpoints/global_step_7")
    shutil.copytree(other.train / "checkpoints/global_step_7", made.train / "checkpoints/global_step_7")
    export_hf(made.train, made.base, tmp_path / "model", step=7)
    assert read_manifest(tmp_path / "model/manifest.json", "export_hf").facts["weights"] != before
