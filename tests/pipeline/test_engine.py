"""verl's Megatron engine on the CPU backend: parallel layouts agree, and a checkpoint continues bit by bit."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from slipway.cpu.environment import environment
from slipway.launch import with_registration

pytestmark = pytest.mark.verl

RANK = Path(__file__).with_name("engine_rank.py")
SECONDS = 150


def cpu_environment(ranks: int = 1) -> dict[str, str]:
    # Against the order in which tests are started: the workflow folder is where this package was found.
    import slipway

    root = str(Path(slipway.__file__).parents[1])
    return os.environ | environment(ranks) | {"PYTHONPATH": root, "HF_HUB_OFFLINE": "1"}


@dataclass
class Result:
    losses: list[list[float]]
    grad_norms: list[float]
    weights: dict


def run_engine(model: Path, folder: Path, name: str, *options: object, tp: int = 1, pp: int = 1, dp: int = 1) -> Result:
    import torch

    out = folder / f"{name}.json"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = tp * pp * dp
    command = [sys.executable, RANK, model, "--tp", tp, "--pp", pp, "--out", out, *options]
    processes = []
    for rank in range(ranks):
        variables = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        log = (folder / f"{name}.{rank}.log").open("w")
        processes.append(
            subprocess.Popen(
                list(map(str, command)),
                env=with_registration(cpu_environment(ranks)) | variables,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )
    try:
        codes = [process.wait(SECONDS) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    logs = "\n".join((folder / f"{name}.{rank}.log").read_text()[-3000:] for rank in range(ranks))
    assert codes == [0] * ranks, logs
    return Result(**json.loads(out.read_text()), weights=torch.load(out.with_suffix(".pt")))


def differences(a: dict, b: dict) -> dict[str, float]:
    import torch

    assert a.keys() == b.keys()
    return {key: (a[key].float() - b[key].float()).abs().max().item() for key in a if not torch.equal(a[key], b[key])}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from tiny_model import make_model

    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def unbroken(model, tmp_path_factory):
    """Five steps in one process, a checkpoint after three; also writes the first weights as Megatron's."""
    folder = tmp_path_factory.mktemp("unbroken")
    result = run_engine(
        model,
        folder,
        "run",
        *("--convert", folder / "converted", "--train", 3, "--save", folder / "checkpoint", "--train-after", 2),
    )
    return folder, result


def test_first_weights_are_the_hugging_face_ones(model, unbroken):
    import torch
    from safetensors.torch import load_file

    expected = {name: weight.to(torch.bfloat16) for name, weight in load_file(model / "model.safetensors").items()}
    assert differences(expected, unbroken[1].weights["start"]) == {}


def test_a_step_goes_against_the_gradient_that_transformers_computes(model, tmp_path):
    assert_goes_against_the_gradient(model, run_engine(model, tmp_path, "run", "--train", 1))


def assert_goes_against_the_gradient(model: Path, trained: Result) -> None:
    """Adam's first step moves each weight by the learning rate against the sign of its gradient."""
    import engine_rank
    import torch
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    batch = engine_rank.batch()
    rows = list(zip(batch["input_ids"].unbind(), batch["loss_mask"].unbind(), strict=True))
    loss = sum(
        -(reference(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0] * mask[1:]).sum()
        for ids, mask in rows
    )
    (loss / sum(int(mask.sum()) for _, mask in rows)).backward()
    gradients = {name: parameter.grad for name, parameter in reference.named_parameters()}
    norm = torch.sqrt(sum((gradient**2).sum() for gradient in gradients.values())).item()
    assert trained.grad_norms == pytest.approx([norm], rel=2**-6)
    for name, gradient in gradients.items():
        moved = trained.weights["end"][name].float() - trained.weights["start"][name].float()
        seen = moved != 0  # bfloat16 does not show so small a change of a weight near one, such as a norm's
        agreement = (-moved.sign() * gradient)[seen].sum() / gradient.abs()[seen].sum().clamp(min=1e-12)
        assert agreement > 0.99 or not seen.any(), name


LAYOUTS = {
    "tensor and sequence parallel": {"tp": 2},
    "pipeline parallel": {"pp": 2},
    "data parallel": {"dp": 2},
}


@pytest.fixture(scope="module", params=LAYOUTS.values(), ids=list(LAYOUTS))
def parallel(request, model, tmp_path_factory):
    """Four steps of two ranks, a checkpoint after three."""
    folder = tmp_path_factory.mktemp("parallel")
    options = ("--train", 3, "--save", folder / "checkpoint", "--train-after", 1)
    return folder, request.param, run_engine(model, folder, "run", *options, **request.param)


def test_parallel_layouts_train_alike(unbroken, parallel):
    _, layout, trained = parallel
    # bfloat16 keeps 8 bits, and tensor parallelism rounds a sum at other places. The other two change nothing but the
    # order in which gradients and their norm are summed, and through clipping the weights.
    losses, norms = (2**-8, 2**-6) if "tp" in layout else (1e-4, 1e-4)
    expected = unbroken[1].losses[:4]
    if "dp" in layout:  # rank 0 has the first micro batch, and its mean is over half as many ranks' tokens
        expected, losses = [[2 * first] for first, _ in expected], 2**-8
    for step, of_step in enumerate(expected):
        assert trained.losses[step] == pytest.approx(of_step, rel=losses)
    assert trained.grad_norms == pytest.approx(unbroken[1].grad_norms[:4], rel=norms)


def test_a_checkpoint_of_a_layout_goes_on_under_it(model, parallel, tmp_path):
    folder, layout, trained = parallel
    resumed = run_engine(model, tmp_path, "run", "--load", folder / "checkpoint", "--train-after", 1, **layout)
    assert resumed.losses == trained.losses[3:]
    assert differences(resumed.weights["end"], trained.weights["end"]) == {}


def test_resume_is_bitwise_equal(model, unbroken, tmp_path):
    """Loads into a fresh process: an engine that has trained already has the Adam state which loading must make."""
    folder, expected = unbroken
    resumed = run_engine(model, tmp_path, "run", "--load", folder / "checkpoint", "--train-after", 2)
    assert resumed.losses == expected.losses[3:]
    assert differences(resumed.weights["end"], expected.weights["end"]) == {}


def test_resume_test_sees_a_restarted_adam_step(model, unbroken, tmp_path):
    folder, expected = unbroken
    resumed = run_engine(
        model,
        tmp_path,
        "run",
        *("--load", folder / "checkpoint", "--forget-adam-step", "--train-after", 2),
    )
    assert differences(resumed.weights["end"], expected.weights["end"])


def test_training_from_a_converted_checkpoint(model, unbroken, tmp_path):
    """`use_dist_checkpointing`: the same weights in, and the model saved as torch_dist."""
    folder, expected = unbroken
    checkpoint = tmp_path / "checkpoint"
    result = run_engine(
        model,
        tmp_path,
        "run",
        *("--converted", folder / "converted", "--train", 1, "--save", checkpoint),
    )
    assert differences(result.weights["start"], expected.weights["start"]) == {}
    assert result.losses == expected.losses[:1]
    assert (checkpoint / "model" / "dist_ckpt" / ".metadata").is_file()


def test_latent_attention_trains_from_a_converted_checkpoint(model, tmp_path):
    """DeepSeek-V3 with dense layers alone: megatron-core's experts for the CPU have other names than mbridge's."""
    import small_models
    import torch
    from safetensors.torch import load_file

    from slipway.convert.to_megatron import CHECKPOINT, convert_megatron

    source = tmp_path / "model"
    shutil.copytree(model, source)  # the tokenizer
    sizes = {"vocab_size": 384, "hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 64}
    layers = {"num_hidden_layers": 2, "first_k_dense_replace": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    small_models.build("deepseek-v3", sizes | layers).save_pretrained(source)
    convert_megatron(source, tmp_path / "megatron")
    options = ("--converted", tmp_path / "megatron" / CHECKPOINT, "--train", 1)
    single, parallel = (run_engine(source, tmp_path, f"tp{tp}", *options, tp=tp) for tp in (1, 2))
    expected = {name: weight.to(torch.bfloat16) for name, weight in load_file(source / "model.safetensors").items()}
    for result in (single, parallel):
        assert differences(expected, result.weights["start"]) == {}
        assert_goes_against_the_gradient(source, result)
    assert parallel.losses[0] == pytest.approx(single.losses[0], rel=2**-8)


PRETEND_GPU = """
import torch
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 2
import verl
"""


def run_python(code: str, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=cpu_environment() | variables,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def test_refuses_where_a_gpu_is_visible():
    run = run_python(PRETEND_GPU)
    assert run.returncode != 0
    assert "torch sees 2 CUDA device(s)" in run.stderr
    assert "CUDA_VISIBLE_DEVICES" in run.stderr


def test_leaves_other_platforms_alone():
    check = "import torch; before = torch.zeros; import verl, slipway.cpu; print(torch.zeros is before)"
    run = run_python(check, VERL_PLATFORM="nvidia")
    assert run.stdout.split() == ["True"], run.stderr


def test_environment_needs_neither_torch_nor_verl():
    check = "import slipway.cpu.environment, sys; print({'torch', 'verl', 'ray'} & set(sys.modules))"
    run = run_python(check)
    assert run.stdout.strip() == "set()", run.stderr
