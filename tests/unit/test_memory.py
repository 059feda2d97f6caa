"""The forecast of memory against what was measured, and its rules."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from slipway.config.schema import Run
from slipway.config.verl import flatten, merge
from slipway.models.architecture import Architecture
from slipway.models.known import find_dimensions
from slipway.models.layout import Layout
from slipway.models.sizes import model_parameters
from slipway.preflight.command_line import judge
from slipway.preflight.findings import errors
from slipway.preflight.planning.calibration import GIB, MEMORY_BAND
from slipway.preflight.planning.hardware import GPUS, gpu_named, gpu_with_memory
from slipway.preflight.planning.memory import Forecast, Phase, cache_bytes_per_token, forecast, state
from slipway.preflight.planning.workload import Recompute, Workload, workload_of
from slipway.preflight.static import check_run
from slipway.preflight.subject import Subject
from slipway.preflight.walltime import check_walltime

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import memory as memory_benchmark

H200 = GPUS["H200-141GB"].memory
# what was trained before the project began, on one H200: Qwen2.5-0.5B's sizes with an output layer of its own
MODEL = Architecture("Qwen2ForCausalLM", 24, 896, 14, 2, 64, 4864, 151936, 32768, False, qkv_bias=True)
WORK = Workload(
    prompts=16, samples=8, mini_batch=16, prompt_length=17, response_length=128, micro_tokens=0, log_prob_tokens=0
)  # fmt: skip
OFFLOAD = {"param_offload": True, "optimizer_offload": True, "reference_offload": True}
# micro batch, response, switches, whether Adam's moments were there, GiB allocated at the peak, GiB reserved
MEASURED = [
    (4, 128, {}, False, 11.84, 11.95),
    (16, 128, {}, False, 16.54, 17.74),
    (16, 128, {}, True, 21.23, 22.43),
    (16, 1024, {}, False, 52.20, 57.44),
    (16, 1024, {"recompute": Recompute()}, False, 28.44, 34.14),
    (16, 128, OFFLOAD, False, 15.35, 16.50),
]


def of(micro: int, response: int, switches: dict) -> Forecast:
    work = replace(WORK, response_length=response, **switches).with_micro_batch(micro)
    return forecast(MODEL, Layout(1), work, H200, 1)


def phase(needed: Forecast, name: str) -> dict[str, float]:
    return dict(next(one for one in needed.phases if one.name == name).terms)


def test_the_measured_model_is_the_one_that_is_forecast():
    assert round(model_parameters(MODEL).total / 1e6) == 630


@pytest.mark.parametrize(("micro", "response", "switches", "moments", "allocated", "reserved"), MEASURED)
def test_forecast_is_within_its_band_of_what_was_measured(micro, response, switches, moments, allocated, reserved):
    terms = phase(of(micro, response, switches), "update")
    of_torch = {name: size for name, size in terms.items() if "context" not in name}
    if not moments:
        # in the first step they appear when the activations are gone
        of_torch["optimizer"] /= 3
        activations = ("activations and logits", "workspace", "fragmentation")
        with_moments = sum(size for name, size in terms.items() if "context" not in name and name not in activations)
    else:
        with_moments = 0.0
    without_fragments = sum(size for name, size in of_torch.items() if name != "fragmentation")
    assert max(without_fragments, with_moments) / GIB == pytest.approx(allocated, rel=MEMORY_BAND)
    # reserved blocks of the first steps are fewer than the forecast of the later ones: an upper bound, not far off
    assert reserved * (1 - MEMORY_BAND) < max(sum(of_torch.values()), with_moments) / GIB < reserved * 1.25


def test_the_whole_gpu_of_a_real_training():
    """SmolLM2-135M, rollout share 0.4, one H200: 63,881 and 64,221 MiB at the peak (docs/measurements)."""
    smol = find_dimensions("HuggingFaceTB/SmolLM2-135M-Instruct")
    work = replace(WORK, prompts=64, rollout_share=0.4, response_length=64).with_micro_batch(64)
    rollout = sum(phase(forecast(smol, Layout(1), work, H200, 1), "rollout").values())
    assert rollout / 2**20 == pytest.approx(64_221, rel=0.03)


def test_state_of_a_rank_by_hand():
    model = find_dimensions("Qwen/Qwen2.5-7B-Instruct")
    # 8 ranks of one copy each: bf16 weights, float32 gradients, an eighth of 12 bytes, a bf16 reference
    own = state(model, Layout(8), WORK, 0)
    p = 7_615_616_512
    assert (own.weights, own.gradients, own.optimizer, own.reference) == (2 * p, 4 * p, 12 * p / 8, 2 * p)
    # every expert is on two of the eight ranks: 12 bytes over 2 instead of over 8
    experts = find_dimensions("Qwen/Qwen3-30B-A3B")
    own = state(experts, Layout(8, expert=4, expert_tensor=1), WORK, 0)
    of_experts = 48 * 128 // 4 * 3 * 2048 * 768
    rest = model_parameters(experts).dense
    assert own.weights == 2 * (of_experts + rest)
    assert own.optimizer == 12 * (of_experts / 2 + rest / 8)


def test_keys_and_values_of_a_token():
    # 28 layers x 4 heads of 128 x keys and values x 2 bytes; a rank has one head at least
    model = find_dimensions("Qwen/Qwen2.5-7B-Instruct")
    assert cache_bytes_per_token(model, 1) == 57_344
    assert cache_bytes_per_token(model, 4) == cache_bytes_per_token(model, 8) == 14_336
    # MLA: 61 layers x (512 + 64) x 2 bytes on every rank
    assert cache_bytes_per_token(find_dimensions("deepseek-ai/DeepSeek-V3"), 8) == 70_272


@pytest.mark.parametrize(
    ("more", "less"),
    [
        ({}, {"recompute": Recompute()}),
        ({}, OFFLOAD),
        ({}, {"has_reference": False}),
        ({"with_entropy": True}, {}),
        ({}, {"rollout_share": 0.3}),
    ],
)
def test_what_saves_memory_saves_it(more, less):
    def peak(switches: dict) -> float:
        return max(one.total for one in of(16, 1024, switches).phases if one.name in ("update", "rollout"))

    def both(switches: dict) -> float:
        return sum(one.total for one in of(16, 1024, switches).phases)

    assert peak(less) <= peak(more)
    assert both(less) < both(more)


def test_every_way_of_splitting_saves_memory_on_a_rank():
    model = find_dimensions("Qwen/Qwen3-30B-A3B")
    work = replace(WORK, response_length=4096).with_micro_batch(1)
    one = Layout(32, expert_tensor=1)
    for split in ({"tensor": 2, "sequence": True}, {"pipeline": 2}, {"context": 2}, {"expert": 8}):
        needed = forecast(model, replace(one, **split), work, H200, 8)
        assert sum(phase(needed, "update").values()) < sum(
            phase(forecast(model, one, work, H200, 8), "update").values()
        )


LAUNCH = """python3 -m verl.trainer.main_ppo model_engine=megatron actor_rollout_ref.model.path={model} \\
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.tensor_model_parallel_size={rollout} \\
    actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 \\
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1 actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
    algorithm.adv_estimator=grpo critic.enable=False data.train_batch_size=64 trainer.save_freq=20 \\
    data.filter_overlong_prompts=True trainer.nnodes={nodes} trainer.n_gpus_per_node=8 {more}
"""


@pytest.mark.parametrize(
    ("model", "nodes", "rollout", "more", "rules"),
    [
        ("Qwen/Qwen2.5-1.5B", 1, 1, "", []),
        # 72 B parameters on 8 GPUs of 80 GB, unsplit and not offloaded: nobody trains that
        ("Qwen/Qwen2.5-72B", 1, 8, "", ["S16"]),
        # 145 GB of weights do not fit one GPU's half to roll out
        ("Qwen/Qwen2.5-72B", 64, 1, "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=8", ["S17"]),
    ],
)
def test_a_launch_that_cannot_fit_is_an_error(model, nodes, rollout, more, rules):
    found = judge(LAUNCH.format(model=model, nodes=nodes, rollout=rollout, more=more), gpu=gpu_named("H100-80GB"))
    assert [finding.rule for finding in found if finding.severity == "error"] == rules
    assert any(model in finding.why for finding in found)  # whose dimensions were taken


@pytest.mark.parametrize(("minutes", "gpu_memory", "rules"), [(1440, 80, []), (5, 80, ["S21"]), (5, None, [])])
def test_a_time_limit_without_room_for_a_step_is_a_warning(minutes, gpu_memory, rules):
    model = find_dimensions("Qwen/Qwen2.5-1.5B")
    launch = LAUNCH.format(model="Qwen/Qwen2.5-1.5B", nodes=1, rollout=1, more="")
    settings = settings_of(launch)
    run = Run(model="m", data="d", evaluation=["e"], steps=10, runtime_minutes=minutes)
    subject = Subject(settings, model, gpu_memory=gpu_memory and gpu_memory * GIB)
    found = list(check_walltime("mine", run, model, subject))
    assert [finding.rule for finding in found] == rules
    assert all(finding.severity == "warning" and finding.key == "runs.mine.runtime_minutes" for finding in found)


@pytest.mark.parametrize(("estimator", "warned"), [("grpo", True), ("gpro", False)])
def test_the_time_limit_is_judged_only_where_no_rule_refuses_the_run(estimator, warned):
    settings = settings_of(LAUNCH.format(model="Qwen/Qwen2.5-1.5B", nodes=1, rollout=1, more=""))
    settings["algorithm.adv_estimator"] = estimator
    run = Run(model="m", data="d", evaluation=["e"], steps=10, runtime_minutes=5)
    subject = Subject(settings, find_dimensions("Qwen/Qwen2.5-1.5B"), gpu_memory=80 * GIB)
    found = check_run("mine", run, subject)
    assert bool(errors(found)) is not warned
    assert ("S21" in {finding.rule for finding in found}) is warned


def settings_of(launch: str) -> dict:
    words = [
        word for word in launch.replace("\\\n", " ").split() if "=" in word and not word.startswith("model_engine")
    ]
    return flatten(merge({key: yaml.safe_load(value) for key, value in (word.split("=", 1) for word in words)}))


def test_a_gpu_is_found_by_name_or_by_memory():
    assert gpu_with_memory(80).bf16 == GPUS["H100-80GB"].bf16
    assert gpu_with_memory(80).node_link == GPUS["H100-80GB"].node_link  # an H800's is less than half
    assert gpu_with_memory(141).bandwidth == GPUS["H200-141GB"].bandwidth
    assert gpu_with_memory(24).memory == 24 * GIB
    with pytest.raises(Exception, match="did you mean H100-80GB"):
        gpu_named("h100-80g")


RECOMPUTED = "actor_rollout_ref.actor.megatron.override_transformer_config.recompute"


@pytest.mark.parametrize(
    ("more", "saves"),
    [
        ({"granularity": "full", "method": "uniform", "num_layers": 1}, True),
        ({"granularity": "full", "method": "block", "num_layers": 28}, True),
        # one of 28 layers, and all layers at once
        ({"granularity": "full", "method": "block", "num_layers": 1}, False),
        ({"granularity": "full", "method": "uniform", "num_layers": 28}, False),
    ],
)
def test_recomputation_saves_what_it_does_not_hold(more, saves):
    keys = " ".join(f"{RECOMPUTED}_{name}={value}" for name, value in more.items())
    lengths = "data.max_prompt_length=8192 data.max_response_length=24576"
    settings = settings_of(LAUNCH.format(model="x", nodes=1, rollout=2, more=f"{lengths} {keys}"))
    model = find_dimensions("Qwen/Qwen2.5-7B-Instruct")

    def update(changed: dict) -> float:
        work = workload_of(Subject(changed, model))
        return sum(phase(forecast(model, Layout(8), work, H200, 8), "update").values())

    plain = {key: value for key, value in settings.items() if not key.startswith(RECOMPUTED)}
    assert (update(settings) < 0.7 * update(plain)) is saves


@pytest.mark.parametrize(
    "more",
    [
        "actor_rollout_ref.model.lora.rank=32",
        f"{RECOMPUTED}_granularity=selective {RECOMPUTED}_modules=[mlp,core_attn]",
    ],
)
def test_what_the_forecast_has_no_terms_for_has_no_forecast(more):
    launch = LAUNCH.format(model="Qwen/Qwen2.5-72B", nodes=1, rollout=8, more=more)
    assert {finding.rule for finding in judge(launch, gpu=gpu_named("H100-80GB"))} <= {"S13", "R31"}


def test_weights_that_exceed_the_rollout_share_are_refused_exactly():
    # 235.09e9 x 2 bytes / 8 = 54.7 GiB; 0.68 x 80 = 54.4 GiB
    for share, refused in ((0.68, True), (0.75, False)):
        more = f"actor_rollout_ref.rollout.gpu_memory_utilization={share}"
        launch = LAUNCH.format(model="Qwen/Qwen3-235B-A22B", nodes=16, rollout=8, more=more)
        found = {finding.rule for finding in judge(launch, gpu=gpu_named("H100-80GB"))}
        assert ("S17" in found) is refused


def test_an_engine_that_keeps_its_memory_is_counted_in_the_update():
    plain, kept = (
        sum(phase(forecast(MODEL, Layout(1), replace(WORK, rollout_sleeps=sleeps), H200, 1), "update").values())
        for sleeps in (True, False)
    )
    assert kept - plain == pytest.approx(0.5 * H200)


ON_H200 = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "docs/measurements/2026-12-02-h200-memory.jsonl").read_text().splitlines()
]


@pytest.mark.parametrize("line", ON_H200, ids=lambda line: str(line["number"]))
def test_forecast_of_what_was_measured_in_the_engine_alone(line, tmp_path):
    asked = memory_benchmark.Configuration(**line["configuration"])
    folder = memory_benchmark.make_folder(asked, None, tmp_path)
    today = line | memory_benchmark.forecast_of(asked, folder, H200)
    expected, found = memory_benchmark.allocated(today)
    assert expected == pytest.approx(found, rel=0.03)
    # what is called fitting fits: all that the device gave, with an engine that had no rollout beside it
    needed = Phase("update", today["forecast"]["update"])
    assert line["measured"]["second update"]["reserved"] <= needed.reserved * (1 + MEMORY_BAND)
    of_pass = today["forecast"]["log-probabilities"]["one pass"]
    passed = line["measured"]["log-probabilities"]["allocated"] - line["held_before"]
    if not asked.offload:
        passed -= line["measured"]["model"]["allocated"] - line["held_before"]
        assert of_pass == pytest.approx(passed, rel=0.05, abs=0.7 * GIB)
