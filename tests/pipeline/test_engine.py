"""verl's Megatron engine on the CPU backend: parallel layouts agree, and a checkpoint continues bit by bit."""

import subprocess
import sys

import pytest
from engine_runs import SECONDS, assert_goes_against_the_gradient, cpu_environment, differences, run_engine

pytestmark = pytest.mark.verl


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
