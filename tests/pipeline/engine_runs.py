"""Runs of verl's Megatron engine on the CPU backend, a process a rank (`engine_rank`), and what they have to show."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from slipway.cpu.environment import environment
from slipway.launch import with_registration

RANK = Path(__file__).with_name("engine_rank.py")
SECONDS = 150


def cpu_environment(ranks: int = 1) -> dict[str, str]:
    # Against the order in which tests are started: the workflow folder is where this package was found.
    import slipway

    root = str(Path(slipway.__file__).parents[1])
    return os.environ | environment(ranks) | {"PYTHONPATH": root, "HF_HUB_OFFLINE": "1"}


@dataclass
class Result:
    """Losses and gradient norms of every step; weights at the start, at the checkpoint and at the end."""

    losses: list[list[float]]
    grad_norms: list[float]
    weights: dict


def run_engine(
    model: Path, folder: Path, name: str, *options: object, tp: int = 1, pp: int = 1, dp: int = 1, ep: int = 1
) -> Result:
    """Run an engine of tp x pp x dp ranks; the `ep` ranks that share a layer's experts are among those."""
    import torch

    out = folder / f"{name}.json"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = tp * pp * dp
    command = [sys.executable, RANK, model, "--tp", tp, "--pp", pp, "--ep", ep, "--out", out, *options]
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
    """Return by how much the tensors that differ do at most; both have to have the same names."""
    import torch

    assert a.keys() == b.keys(), sorted(a.keys() ^ b.keys())
    return {key: (a[key].float() - b[key].float()).abs().max().item() for key in a if not torch.equal(a[key], b[key])}


def assert_goes_against_the_gradient(model: Path, trained: Result) -> None:
    """Adam's first step moves each weight by the learning rate against the sign of its gradient.

    `trained` has made one step by its checkpoint, or by its end if it saved none.
    """
    import torch

    gradients = gradients_by_transformers(model)
    norm = torch.sqrt(sum((gradient**2).sum() for gradient in gradients.values())).item()
    assert trained.grad_norms[0] == pytest.approx(norm, rel=2**-6)
    after = trained.weights["saved"] or trained.weights["end"]
    for name, gradient in gradients.items():
        moved = after[name].float() - trained.weights["start"][name].float()
        seen = moved != 0  # bfloat16 does not show so small a change of a weight near one, such as a norm's
        agreement = (-moved.sign() * gradient)[seen].sum() / gradient.abs()[seen].sum().clamp(min=1e-12)
        assert agreement > 0.99 or not seen.any(), name


def gradients_by_transformers(model: Path) -> dict:
    """Return the gradient of the batch's loss with respect to every trained tensor of a model's files, by its name."""
    import engine_rank
    from safetensors.torch import load_file

    reference = read_reference(model)
    batch = engine_rank.batch()
    rows = list(zip(batch["input_ids"].unbind(), batch["loss_mask"].unbind(), strict=True))
    loss = sum(
        -(reference(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0] * mask[1:]).sum()
        for ids, mask in rows
    )
    (loss / sum(int(mask.sum()) for _, mask in rows)).backward()
    # Saved in the weights' place, experts come apart: transformers computes with those of a layer in one tensor.
    for parameter in reference.parameters():
        parameter.data = parameter.grad
    buffers = {name for name, _ in reference.named_buffers()}
    with tempfile.TemporaryDirectory() as folder:
        reference.save_pretrained(folder)
        saved = load_file(Path(folder) / "model.safetensors")
    return {name: gradient for name, gradient in saved.items() if name not in buffers}


def read_reference(model: Path):
    """Return the model as transformers computes it, in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
