"""Filling gaps gives byte for byte what Hydra, OmegaConf and YAML make of the settings themselves."""

from pathlib import Path

import pytest

from slipway.config import verl
from slipway.config.schema import Data, Parallel, Run
from slipway.config.verl_template import Template, dump, make_template, split_settings

DATA = Data(task="reasoning_gym", sources=[{"dataset": "chain_sum"}], train=100, heldout=50)
ACTOR = "actor_rollout_ref.actor"
FREE_PATH = "trainer.rollout_data_dir"


def settings(folder: str = "results", parallel: Parallel = Parallel(), **changes) -> dict:  # noqa: B008
    run = Run(**{"model": "m", "data": "d", "evaluation": ["e"], "steps": 40, **changes})
    names = ("model", "megatron", "train.parquet", "heldout.parquet", "demo/train/checkpoints")
    files = verl.RunFiles(*(Path("/") / folder / name for name in names))
    device = {f"{verl.ROLLOUT}.name": "vllm"}
    return verl.settings_of(run, DATA, parallel, verl.MicroBatches(8, 8), files) | device | verl.flatten(run.verl)


def check_exact(given: dict, template: Template) -> None:
    values, _ = split_settings(given)
    whole = verl.merge(given)
    assert template.text(values) == dump(whole)
    assert template.plain(values) == whole


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 7, "nodes": 2, "gpus_per_node": 4, "validate_every": 3},
        {"parallel": Parallel(tensor=2, pipeline=2, virtual_pipeline=2, expert_tensor=1)},
        {"grpo": {"kl_coefficient": 0.0, "learning_rate": 1e-6, "temperature": 2.0, "seed": 2**31 - 1}},
        {"grpo": {"lr_schedule": "cosine", "mini_batch_prompts": 4, "clip_ratio": 0.3}},
        {"folder": "a folder's name: with # spaces, and so long that YAML breaks the line " + "again and " * 20},
        {"folder": "1e5"},
    ],
)
def test_a_template_made_from_one_run_serves_another(changes):
    template = make_template(settings(), verl.merge)
    check_exact(settings(**changes), template)


@pytest.mark.parametrize(
    "value", ["true", "1e5", "null", "", " ", "- x", "é\n x", "'", "2020-01-01", True, 1, 1.0, -0.0]
)
def test_a_further_key_is_written_as_yaml_writes_it(value):
    template = make_template(settings(verl={FREE_PATH: "other"}), verl.merge)
    check_exact(settings(verl={FREE_PATH: value}), template)


@pytest.mark.parametrize(
    "extra",
    [
        {FREE_PATH: "${trainer.default_local_dir}/rollouts"},
        {FREE_PATH: "???"},
        {"trainer.logger": ["console"]},
        {"ray_kwargs.ray_init.runtime_env": {"env_vars": {"A": "1", "B": [1, {"c": None}]}}},
        {"ray_kwargs.ray_init.runtime_env": {}},
        {f"{ACTOR}.megatron.override_transformer_config.recompute_granularity": "full"},
    ],
)
def test_what_cannot_be_a_gap_belongs_to_the_template(extra):
    given = settings(verl=extra)
    check_exact(given, make_template(given, verl.merge))


def test_an_interpolation_that_does_more_than_copy_is_noticed():
    with pytest.raises(AssertionError, match="more of a setting than copies"):
        make_template({"a": 1}, lambda given: {"a": given["a"], "b": f"{given['a']}/b"})


def test_a_template_is_the_same_after_reading_it_back():
    template = make_template(settings(), verl.merge)
    assert Template.from_json(template.to_json()) == template


def test_runs_of_one_kind_compose_once_and_later_processes_never(tmp_path, monkeypatch):
    merges = []
    merge = verl.merge
    monkeypatch.setattr(verl, "merge", lambda given: merges.append(given) or merge(given))
    monkeypatch.setattr(verl, "_templates", {})

    def resolve(**changes):
        run = Run(**{"model": "m", "data": "d", "evaluation": ["e"], "steps": 40, **changes})
        files = verl.RunFiles(*[tmp_path / "made/by/run"] * 5)
        config, problems = verl.resolve(
            "demo", run, DATA, Parallel(), verl.MicroBatches(8, 8), files, {f"{verl.ROLLOUT}.name": "vllm"}, tmp_path
        )
        assert problems == []
        return config.text()

    texts = {resolve(grpo={"seed": seed}) for seed in range(3)}
    assert len(texts) == 3
    assert len(merges) == 1
    monkeypatch.setattr(verl, "_templates", {})  # as in a new process
    assert resolve(grpo={"seed": 0}) in texts
    assert len(merges) == 1
    resolve(verl={FREE_PATH: "somewhere"})
    assert len(merges) == 2


@pytest.mark.parametrize("content", ["", '{"texts": ', "{}", "[]", "5"])
def test_a_damaged_template_is_made_again(content, tmp_path, monkeypatch):
    monkeypatch.setattr(verl, "_templates", {})
    run = Run(**{"model": "m", "data": "d", "evaluation": ["e"], "steps": 40})
    files = verl.RunFiles(*[tmp_path / "made/by/run"] * 5)
    device = {f"{verl.ROLLOUT}.name": "vllm"}
    folder = tmp_path / "composed"
    expected, _ = verl.resolve("demo", run, DATA, Parallel(), verl.MicroBatches(8, 8), files, device, folder)
    (kept,) = folder.glob("*.json")
    whole = kept.read_text()
    kept.write_text(content)
    monkeypatch.setattr(verl, "_templates", {})
    again, problems = verl.resolve("demo", run, DATA, Parallel(), verl.MicroBatches(8, 8), files, device, folder)
    assert problems == []
    assert again.text() == expected.text()
    assert kept.read_text() == whole
