"""GPU memory of verl's Megatron engine by phase, forecast before and measured after, over many configurations.

One process on one GPU, tensor parallel size 1, bf16, random weights, no rollout engine: the model is built, passes for
log-probabilities and two updates are made (Adam's moments appear in the first, so that the second has the peak). One
line of JSON a configuration goes to `--out` as it is measured, so that a run cut off keeps what it has.

    PYTHONPATH=workflow python benchmarks/memory.py --tokenizer <folder of any model> --out memory.jsonl

With VERL_PLATFORM=cpu it runs without a GPU, to try the script: there is no figure of memory then.
"""

import argparse
import gc
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workflow"))
from slipway.models.architecture import Architecture, read_architecture
from slipway.models.known import find_folder
from slipway.models.layout import Layout
from slipway.models.sizes import model_parameters
from slipway.preflight.planning.memory import Phase, forecast
from slipway.preflight.planning.workload import Recompute, Workload

TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "vocab.json", "merges.txt", "chat_template.jinja")
LARGER = {"num_hidden_layers": 36, "hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 11008}
# scaled positions, which verl's Megatron model leaves out, change nothing about memory
UNSCALED = {"rope_scaling": None}
GIB = 2**30
# of the GPU; the phases that are compared do not depend on it
MEMORY = 140 * GIB


@dataclass(frozen=True)
class Configuration:
    """What is trained: a model that ships, and what an update takes."""

    model: str
    responses: int
    """Responses of a micro batch."""
    length: int
    """Tokens of each sequence, or with `mixed` of the longest."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Of the model's config.json."""
    recompute: bool = False
    offload: bool = False
    mixed: bool = False
    """Sequences of all lengths."""
    by_tokens: bool | None = None
    """Micro batches of so many tokens instead of so many sequences; None: where lengths are mixed."""
    micro_batches: int = 2
    """In a pass for log-probabilities, and in an update."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of verl's engine."""
    transformer: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of Megatron's model."""

    @property
    def dynamic(self) -> bool:
        """Whether verl divides sequences among micro batches by their tokens."""
        return self.mixed if self.by_tokens is None else self.by_tokens


SMOL, HALF, ONE, LLAMA, QWEN3 = (
    "HuggingFaceTB/SmolLM2-135M-Instruct",
    "Qwen/Qwen2.5-0.5B",
    "Qwen/Qwen2.5-1.5B",
    "meta-llama/Llama-3.2-1B-Instruct",
    "Qwen/Qwen3-1.7B",
)
# the most telling first: a run may be cut off. Fitting and judging take turns, so neighbours differ in one thing
CONFIGURATIONS = (
    Configuration(HALF, 16, 1024),
    Configuration(ONE, 8, 1024),
    Configuration(SMOL, 64, 448),
    Configuration(ONE, 8, 2048, recompute=True),
    Configuration(QWEN3, 8, 1024),
    Configuration(HALF, 16, 2048, recompute=True),
    Configuration(LLAMA, 8, 1024, UNSCALED),
    Configuration(ONE, 8, 1024, offload=True),
    Configuration(HALF, 16, 1024, mixed=True),
    Configuration(ONE, 4, 1024, LARGER),
    Configuration(SMOL, 16, 448),
    Configuration(QWEN3, 4, 4096, recompute=True),
    Configuration(LLAMA, 4, 4096, UNSCALED),
    Configuration(HALF, 4, 512),
    Configuration(ONE, 2, 8192, recompute=True),
    Configuration(ONE, 8, 2048, LARGER, recompute=True),
    Configuration(SMOL, 8, 8192, recompute=True),
    Configuration(HALF, 2, 8192),
)


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, help="folder with a tokenizer, which verl asks for")
    parser.add_argument("--out", type=Path, help="file that lines are added to")
    parser.add_argument("--judge", type=Path, help="measure nothing: compare such a file with today's forecast")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no configuration after so many")
    parser.add_argument("--only", nargs="+", type=int, help="numbers of configurations, from 0")
    parser.add_argument("--tiny", action="store_true", help="few small layers and short sequences: to try the script")
    arguments = parser.parse_args()
    if arguments.judge:
        judge([json.loads(line) for line in arguments.judge.read_text().splitlines()])
        return
    if not arguments.tokenizer or not arguments.out:
        parser.error("give --tokenizer and --out, or --judge")
    began = time.monotonic()
    start_process_group()
    memory = device_memory()[1]
    for number in arguments.only or range(len(CONFIGURATIONS)):
        if time.monotonic() - began > arguments.seconds:
            print(f"no time left for {len(CONFIGURATIONS) - number} configurations")
            break
        asked = tiny(CONFIGURATIONS[number]) if arguments.tiny else CONFIGURATIONS[number]
        with tempfile.TemporaryDirectory() as temporary:
            folder = make_folder(asked, arguments.tokenizer, Path(temporary))
            line = {"number": number, "configuration": asdict(asked), **forecast_of(asked, folder, memory)}
            line |= measured(asked, folder)
        with arguments.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(summary(line), flush=True)


def judge(lines: list[dict[str, Any]]) -> None:
    """Print today's forecast beside what was measured, and its errors over all and over those that fitted nothing."""
    errors = {}
    for line in lines:
        asked = Configuration(**line["configuration"])
        with tempfile.TemporaryDirectory() as temporary:
            line |= forecast_of(asked, make_folder(asked, None, Path(temporary)), MEMORY)
        print(summary(line))
        if not line["error"]:
            errors[line["number"]] = allocated(line)[0] / allocated(line)[1] - 1
    # what calibration.ACTIVATION_EXCESS was fitted to are the even ones
    judging = [abs(error) for number, error in errors.items() if number % 2]
    figures = {"memory_error_median": statistics.median(judging), "memory_error_worst": max(judging)}
    figures["over_all_worst"] = max(map(abs, errors.values()))
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


def tiny(asked: Configuration) -> Configuration:
    """Return a configuration that a CPU trains in seconds."""
    small = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {"intermediate_size": 128, "head_dim": 16}
    return replace(asked, responses=2, length=32, changes=dict(asked.changes) | small | sizes)


def start_process_group() -> None:
    """Be the one rank of a training."""
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29541"}
    for name, value in rank.items():
        os.environ.setdefault(name, value)
    # before torch's first allocation, as verl's workers do
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    import verl  # noqa: F401  loads the CPU backend where the environment asks for it
    from verl.utils.distributed import initialize_global_process_group_ray

    initialize_global_process_group_ray()


def make_folder(asked: Configuration, tokenizer: Path | None, folder: Path) -> Path:
    """Write the model's config.json and somebody's tokenizer, if any; there are no weights."""
    source = find_folder(asked.model)
    assert source is not None
    config = json.loads((source / "config.json").read_text()) | dict(asked.changes)
    config.setdefault("bos_token_id", 0)
    config.setdefault("eos_token_id", 0)
    (folder / "config.json").write_text(json.dumps(config))
    for pattern in TOKENIZER_FILES if tokenizer else ():
        for file in tokenizer.glob(pattern):
            shutil.copy(file, folder)
    return folder


def forecast_of(asked: Configuration, folder: Path, memory: int) -> dict[str, Any]:
    """Return the forecast, bytes by phase and term; nothing of it comes from a measurement of this run."""
    model: Architecture = read_architecture(folder)
    work = Workload(
        prompts=asked.micro_batches * asked.responses,
        samples=1,
        mini_batch=asked.micro_batches * asked.responses,
        prompt_length=asked.length // 2,
        response_length=asked.length - asked.length // 2,
        micro_tokens=0,
        log_prob_tokens=0,
        has_reference=False,
        with_entropy=True,
        recompute=Recompute() if asked.recompute else None,
        param_offload=asked.offload,
        optimizer_offload=asked.offload,
    ).with_micro_batch(asked.responses)
    needed = forecast(model, Layout(1), work, memory, 1)
    terms = {phase.name: dict(phase.terms) for phase in needed.phases if phase.name in ("log-probabilities", "update")}
    return {"parameters": model_parameters(model).total, "forecast": terms}


def measured(asked: Configuration, folder: Path) -> dict[str, Any]:
    """Return what each phase took, bytes; or what went wrong."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    began = time.monotonic()
    phases: dict[str, dict[str, int]] = {}
    engine = error = None
    try:
        engine = build(asked, folder)
        phases["model"] = peaks()
        with engine.eval_mode():
            engine.infer_batch(batch(asked, folder), loss_function=None)
        phases["log-probabilities"] = peaks()
        for update in ("first update", "second update"):
            with engine.train_mode():
                engine.train_batch(batch(asked, folder), loss_function=mean_negative_log_prob)
            phases[update] = peaks()
    except Exception as fault:  # of any kind: the others are still to be measured
        error = f"{type(fault).__name__}: {fault}"[:300]
    del engine
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    left = torch.cuda.memory_allocated()
    return {
        "measured": phases,
        "held_before": before,
        "left_behind": left - before,
        "error": error,
        "seconds": round(time.monotonic() - began, 1),
    }


def peaks() -> dict[str, int]:
    """Return the peaks since the last call, bytes, and what the device gives all its processes now."""
    import torch

    torch.cuda.synchronize()
    free, total = device_memory()
    found = {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "device": total - free,
    }
    torch.cuda.reset_peak_memory_stats()
    return found


def device_memory() -> tuple[int, int]:
    """Return free and all memory of the GPU, bytes."""
    import torch

    if os.environ.get("VERL_PLATFORM") == "cpu":
        return 0, 80 * GIB
    free, total = torch.cuda.mem_get_info()
    return int(free), int(total)


def build(asked: Configuration, folder: Path) -> Any:
    """Build verl's engine as its workers do, with random weights instead of those of a checkpoint."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import HFModelConfig, McoreEngineConfig, McoreOptimizerConfig
    from verl.workers.engine import EngineRegistry
    from verl.workers.engine.megatron import transformer_impl

    transformer_impl.load_mcore_dist_weights = random_weights
    on_cpu = os.environ.get("VERL_PLATFORM") == "cpu"
    overrides: dict[str, Any] = {"attention_backend": "local" if on_cpu else "fused"}
    if on_cpu:
        overrides |= {"masked_softmax_fusion": False, "gradient_accumulation_fusion": False}
    if asked.recompute:
        overrides |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    settings = {"use_remove_padding": True, "param_offload": asked.offload, "optimizer_offload": asked.offload}
    settings |= asked.engine
    engine_config = McoreEngineConfig(
        vanilla_mbridge=True,
        use_dist_checkpointing=True,
        dist_checkpointing_path=str(folder),
        override_transformer_config=overrides | dict(asked.transformer),
        **settings,
    )
    engine_config.use_dynamic_bsz = asked.dynamic
    engine_config.micro_batch_size_per_gpu = engine_config.infer_micro_batch_size_per_gpu = asked.responses
    tokens = asked.responses * asked.length
    engine_config.max_token_len_per_gpu = engine_config.infer_max_token_len_per_gpu = tokens
    engine = EngineRegistry.new(
        "language_model",
        "megatron",
        model_config=HFModelConfig(path=str(folder), use_remove_padding=settings["use_remove_padding"]),
        engine_config=engine_config,
        optimizer_config=McoreOptimizerConfig(lr=1e-6, total_training_steps=10, lr_decay_style="constant"),
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    return engine


def random_weights(module: list[Any], *_args: Any, **_kwargs: Any) -> None:
    """Stand in for verl's loading of a checkpoint."""
    import torch

    with torch.no_grad():
        for part in module:
            for parameter in part.parameters():
                parameter.normal_(0, 0.02)


def batch(asked: Configuration, folder: Path) -> Any:
    """Return sequences for an update's micro batches, the first half of each without loss."""
    import torch
    from verl.utils import tensordict_utils

    generator = torch.Generator().manual_seed(1)
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    lengths = [asked.length] * (asked.micro_batches * asked.responses)
    if asked.mixed:
        budget = asked.micro_batches * asked.responses * asked.length
        lengths = []
        while sum(lengths) + asked.length <= budget:
            lengths.append(int(torch.randint(asked.length // 16, asked.length + 1, (1,), generator=generator)))
        # micro batches of so many sequences are full
        lengths = lengths[: len(lengths) // asked.responses * asked.responses]

    def jagged(rows: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    tensors = {
        "input_ids": jagged([torch.randint(0, min(vocabulary, 360), (n,), generator=generator) for n in lengths]),
        "position_ids": jagged([torch.arange(n) for n in lengths]),
        "loss_mask": jagged([(torch.arange(n) >= n // 2).long() for n in lengths]),
    }
    settings = {
        "temperature": 1.0,
        "calculate_entropy": True,
        "use_dynamic_bsz": asked.dynamic,
        "micro_batch_size_per_gpu": asked.responses,
        "max_token_len_per_gpu": asked.responses * asked.length,
    }
    return tensordict_utils.get_tensordict(tensor_dict=tensors, non_tensor_dict=settings)


def mean_negative_log_prob(model_output: Any, data: Any, dp_group: Any = None) -> tuple[Any, dict[str, float]]:
    """Return the loss of plain language modelling, which holds no more than GRPO's."""
    losses = -(model_output["log_probs"].values().float() * data["loss_mask"].values()).sum()
    loss = losses / data["batch_num_tokens"]
    return loss, {"loss": loss.detach().item()}


def allocated(line: Mapping[str, Any]) -> tuple[float, float]:
    """Return the bytes of torch's peak in the second update, forecast and measured, in an engine without a trainer."""
    terms = line["forecast"]["update"]
    expected = Phase("update", terms).allocated - terms["workspace"]
    return expected, line["measured"]["second update"]["allocated"] - line["held_before"]


def summary(line: Mapping[str, Any]) -> str:
    """Return the peak of the second update beside its forecast, in words."""
    asked = line["configuration"]
    what = (
        f"{line['number']:2} {asked['model']} {line['parameters'] / 1e9:.2f} B {asked['responses']}x{asked['length']}"
    )
    what += "".join(f" {name}" for name in ("recompute", "offload", "mixed") if asked[name])
    if line["error"]:
        return f"{what}: {line['error']}"
    if os.environ.get("VERL_PLATFORM") == "cpu":
        return f"{what}: ran in {line['seconds']} s; no memory figures on the CPU"
    expected, found = allocated(line)
    if not found:
        return f"{what}: no memory was allocated on the GPU"
    reserved = line["measured"]["second update"]["reserved"]
    error = f"{expected / found - 1:+.0%}"
    return (
        f"{what}: forecast {expected / GIB:.1f}, allocated {found / GIB:.1f} ({error}), reserved {reserved / GIB:.1f}"
    )


if __name__ == "__main__":
    main()
