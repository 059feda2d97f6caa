"""What the machine that trains decides for itself."""

import json

import pytest

from slipway.launch import machine

ATTENTION = "actor_rollout_ref.{}.megatron.override_transformer_config.attention_backend"


def config(actor: str = "flash", ref: str = "flash", device: str = "cuda") -> dict:
    roles = {"actor": actor, "ref": ref}
    return {
        "trainer": {"device": device},
        "actor_rollout_ref": {
            role: {"megatron": {"override_transformer_config": {"attention_backend": backend}}}
            for role, backend in roles.items()
        },
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


def test_the_cpu_lacks_nothing():
    assert machine.decide(config(device="cpu"), {}, set().__contains__) == []


def test_decisions_are_recorded_with_the_segment(tmp_path):
    machine.record(machine.decide(config(), {}, set().__contains__), tmp_path)
    recorded = json.loads((tmp_path / machine.RECORD).read_text())["decisions"]
    assert [entry["verl"][ATTENTION.format("actor")] for entry in recorded] == ["fused"]
