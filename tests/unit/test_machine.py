"""What the machine that trains decides for itself."""

import json
from pathlib import Path

import pytest

from slipway.launch import machine

ATTENTION = "actor_rollout_ref.{}.megatron.override_transformer_config.attention_backend"


ROTARY = "actor_rollout_ref.{}.megatron.override_transformer_config.apply_rope_fusion"


def config(actor: str = "flash", ref: str = "flash", device: str = "cuda", model: Path = Path(), **overrides) -> dict:
    roles = {"actor": actor, "ref": ref}
    return {
        "trainer": {"device": device},
        "actor_rollout_ref": {
            role: {"megatron": {"override_transformer_config": {"attention_backend": backend} | overrides}}
            for role, backend in roles.items()
        }
        | {"model": {"path": str(model)}},
    }


def keys(decisions: list[machine.Decision]) -> dict[str, str]:
    return {key: value for decision in decisions for key, value in decision.verl.items()}


def test_without_flash_attention_attention_is_fused():
    decided = machine.decide(config(), {}, set().__contains__)
    assert keys(decided) == {ATTENTION.format("actor"): "fused", ATTENTION.format("ref"): "fused"}


@pytest.mark.parametrize("package", ["flash_attn", "flash_attn_3"])
def test_with_flash_attention_nothing_changes(package):
    assert machine.decide(config(), {}, {package}.__contains__) == []


def test_what_the_user_chose_stays():
    decided = machine.decide(config(actor="unfused"), {}, set().__contains__)
    assert keys(decided) == {ATTENTION.format("ref"): "fused"}
    environment = {machine.FLASHINFER_SAMPLER: "1"}
    assert machine.decide(config("fused", "fused"), environment, {"flashinfer"}.__contains__) == []


@pytest.mark.parametrize(
    ("packages", "sampler"), [({"flashinfer"}, "0"), ({"flashinfer", "flashinfer_cubin"}, None), (set(), None)]
)
def test_the_sampler_of_flashinfer_needs_its_kernels(packages, sampler):
    decided = machine.decide(config("fused", "fused"), {}, packages.__contains__)
    assert [decision.environment.get(machine.FLASHINFER_SAMPLER) for decision in decided] == [sampler] * bool(sampler)


@pytest.mark.parametrize(("torch", "kept"), [("2.9.1", None), ("2.10.0", "0"), ("2.11.0+cu130", "0")])
def test_vllm_keeps_what_it_compiled_where_torch_writes_it_safely(torch, kept):
    versions = {"torch": torch}
    decided = machine.decide(config("fused", "fused"), {}, {"vllm"}.__contains__, versions.__getitem__)
    assert [decision.environment[machine.COMPILE_CACHE_OFF] for decision in decided] == [kept] * bool(kept)
    chosen = {machine.COMPILE_CACHE_OFF: "1"}
    assert machine.decide(config("fused", "fused"), chosen, {"vllm"}.__contains__, versions.__getitem__) == []


def test_rotary_embeddings_are_fused_where_transformer_engine_is(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    decided = machine.decide(config("fused", "fused", model=tmp_path), {}, {"transformer_engine"}.__contains__)
    assert keys(decided) == {ROTARY.format("actor"): "true", ROTARY.format("ref"): "true"}
    chosen = config("fused", "fused", model=tmp_path, apply_rope_fusion=False)
    assert machine.decide(chosen, {}, {"transformer_engine"}.__contains__) == []


def test_rotary_embeddings_of_latent_attention_are_left_to_megatron(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deepseek_v3", "kv_lora_rank": 512}))
    assert machine.decide(config("fused", "fused", model=tmp_path), {}, {"transformer_engine"}.__contains__) == []


def test_the_cpu_lacks_nothing():
    assert machine.decide(config(device="cpu"), {}, set().__contains__) == []


def test_decisions_are_recorded_with_the_segment(tmp_path):
    machine.record(machine.decide(config(), {}, set().__contains__), tmp_path)
    recorded = json.loads((tmp_path / machine.RECORD).read_text())["decisions"]
    assert [entry["verl"][ATTENTION.format("actor")] for entry in recorded] == ["fused"]
