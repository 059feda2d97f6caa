"""Hugging Face to Megatron, beside `cp -r` of the same folder and beside verl's own converter.

Synthetic Qwen2 models of random bf16 weights, caches warm. Slipway's conversion is timed without imports, `cp` and the
two whole commands (`command`: with imports and config) from the outside. `proof` is the proof within the conversion,
where the files are hashed and forced to the disk meanwhile, `verify` the same once more and alone. `floor_ratio` is
what `cp` and the two digests of every byte take one after the other, with nothing forced to the disk or compared.
Memory is the peak of anonymous resident memory (RssAnon of /proc/<pid>/status, sampled), with what the imports alone
take subtracted for Slipway; pages of mapped files, which the kernel takes back when it wants to, are not in it. verl's
converter runs under Slipway's CPU backend: by itself it asks for CUDA.
"""

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# hidden size, layers, MLP width, which make so many GB to within 1 %
SIZES = {"0.5": (640, 26, 2560), "3.5": (1536, 33, 8960), "10": (2560, 47, 11008)}
VERL_SIZE = "3.5"
SHARD_BYTES = 500_000_000
VOCABULARY = 151_936


def main() -> None:
    """Measure and print the figures as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="GB of the models")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to work; it needs three times the largest model")
    parser.add_argument("--one", nargs=2, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(convert_here(*arguments.one)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        print(json.dumps(measure(Path(temporary), arguments.sizes, arguments.repeat)))


def measure(folder: Path, sizes: list[str], repeat: int) -> dict[str, object]:
    """Return the figures of all sizes."""
    names = ("cp_ratio", "floor_ratio", "verify_ratio", "peak_rss_gib", "seconds")
    figures: dict[str, object] = {name: {} for name in names}
    for size in sizes:
        source = folder / f"model-{size}"
        make_model(source, *SIZES[size])
        copies, hashes, runs, commands = [], [], [], []
        for _ in range(repeat):
            copies.append(timed(["cp", "-r", str(source), str(folder / "copy")])[0])
            shutil.rmtree(folder / "copy")
            hashes.append(hash_twice(source))
            one = [sys.executable, str(Path(__file__).resolve()), "--one", str(source), str(folder / "out")]
            runs.append(json.loads(timed(one)[2]))
            shutil.rmtree(folder / "out")
            commands.append(timed(our_converter(source, folder))[:2])
            shutil.rmtree(folder / "results")
        median = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        copy = statistics.median(copies)
        command, memory = (statistics.median(values) for values in zip(*commands, strict=True))
        figures["cp_ratio"][size] = round(median["convert"] / copy, 2)  # type: ignore[index]
        figures["floor_ratio"][size] = round((copy + statistics.median(hashes)) / copy, 2)  # type: ignore[index]
        figures["verify_ratio"][size] = round(median["verify"] / median["convert"], 2)  # type: ignore[index]
        figures["peak_rss_gib"][size] = round(median["anonymous_gib"], 3)  # type: ignore[index]
        figures["seconds"][size] = {  # type: ignore[index]
            "cp": round(copy, 2),
            **{key: round(median[key], 2) for key in ("convert", "write", "proof", "verify")},
            "command": round(command, 2),
        }
        print(f"{size} GB: {figures['seconds'][size]}", file=sys.stderr)  # type: ignore[index]
        if size == VERL_SIZE:
            seconds, peak, _ = timed(verl_converter(source, folder / "out"), cpu_environment())
            shutil.rmtree(folder / "out", ignore_errors=True)
            figures["verl_s"], figures["verl_gib"] = round(seconds, 1), round(peak, 2)
            figures["verl_speedup"] = round(seconds / command, 1)
            # of the whole processes, imports and all, measured in the same way
            figures["verl_memory_ratio"] = round(memory / peak, 3)
        shutil.rmtree(source)
    return figures


def make_model(folder: Path, hidden: int, layers: int, width: int) -> None:
    """Write a Qwen2 of random weights, in shards."""
    import torch
    from safetensors.torch import save_file

    head, kv = 64, 2
    heads = hidden // head
    config = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "hidden_size": hidden,
        "intermediate_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv, "vocab_size": VOCABULARY, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
        "rope_theta": 1e6, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    }  # fmt: skip
    shapes = {"model.embed_tokens.weight": (VOCABULARY, hidden), "model.norm.weight": (hidden,)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (hidden,),
            f"{prefix}.post_attention_layernorm.weight": (hidden,),
            f"{prefix}.self_attn.q_proj.weight": (hidden, hidden),
            f"{prefix}.self_attn.q_proj.bias": (hidden,),
            f"{prefix}.self_attn.o_proj.weight": (hidden, hidden),
            f"{prefix}.mlp.gate_proj.weight": (width, hidden),
            f"{prefix}.mlp.up_proj.weight": (width, hidden),
            f"{prefix}.mlp.down_proj.weight": (hidden, width),
        }
        for part in ("k", "v"):
            shapes[f"{prefix}.self_attn.{part}_proj.weight"] = (kv * head, hidden)
            shapes[f"{prefix}.self_attn.{part}_proj.bias"] = (kv * head,)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    index: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}
    generator = torch.Generator().manual_seed(0)
    for number, (name, shape) in enumerate(shapes.items(), start=1):
        shard[name] = torch.empty(shape, dtype=torch.bfloat16).normal_(std=0.02, generator=generator)
        if sum(tensor.nbytes for tensor in shard.values()) > SHARD_BYTES or number == len(shapes):
            file = f"model-{len(set(index.values())):05}.safetensors"
            save_file(shard, folder / file, metadata={"format": "pt"})
            index |= dict.fromkeys(shard, file)
            shard = {}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def hash_twice(source: Path) -> float:
    """Return the seconds of hashing the weights as often as a conversion does: by file and by tensor."""
    from slipway.manifest import hash_file

    start = time.perf_counter()
    for path in [*source.glob("*.safetensors")] * 2:
        hash_file(path)
    return time.perf_counter() - start


def convert_here(source: Path, target: Path) -> dict[str, float]:
    """Convert in this process, and return seconds by part and the peak of memory above the imports."""
    from slipway.convert import to_megatron
    from slipway.convert.parameters import open_parameters
    from slipway.models.architecture import read_architecture

    parts: dict[str, float] = {}

    def clock(name: str, function):  # type: ignore[no-untyped-def]
        def clocked(*arguments, **options):  # type: ignore[no-untyped-def]
            start = time.perf_counter()
            result = function(*arguments, **options)
            parts[name] = time.perf_counter() - start
            return result

        return clocked

    verify = to_megatron.verify
    to_megatron._write = clock("write", to_megatron._write)
    to_megatron.verify = clock("proof", verify)
    sampler = Sampler(os.getpid())
    before = anonymous_gib(os.getpid())
    start = time.perf_counter()
    to_megatron.convert_megatron(source, target)
    parts["convert"] = time.perf_counter() - start
    peak = sampler.stop() - before
    architecture = read_architecture(source)
    clock("verify", verify)(open_parameters(source, architecture), architecture, target / to_megatron.CHECKPOINT)
    return {**parts, "anonymous_gib": peak}


def our_converter(source: Path, folder: Path) -> list[str]:
    """Return the command of rule `convert_megatron`; its product is below `folder`/results."""
    from slipway.config.load import overlay, read_yaml

    config = folder / "config.yaml"
    config.write_text(
        json.dumps(overlay(read_yaml(ROOT / "config.yaml"), {"models": {"large": {"path": str(source)}}}))
    )
    script = ROOT / "scripts/convert_megatron.py"
    return [sys.executable, "-P", str(script), str(config), "large", "--results", str(folder / "results")]


def verl_converter(source: Path, target: Path) -> list[str]:
    """Return the command of verl's own converter."""
    found = importlib.util.find_spec("verl")
    assert found is not None and found.submodule_search_locations
    script = Path(found.submodule_search_locations[0]).parent / "scripts/converter_hf_to_mcore.py"
    return [sys.executable, str(script), "--hf_model_path", str(source), "--output_path", str(target)]


def cpu_environment() -> dict[str, str]:
    """Return the environment of Slipway's CPU backend, with both cores for one process."""
    from slipway.cpu.environment import environment

    return environment(threads=os.cpu_count() or 1)


def timed(command: list[str], environment: dict[str, str] | None = None) -> tuple[float, float, str]:
    """Run a command; return its seconds, the peak of its anonymous memory in GiB, and its last line."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command, env=os.environ | (environment or {}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    sampler = Sampler(process.pid)
    said, errors = process.communicate()
    seconds, peak = time.perf_counter() - start, sampler.stop()
    if process.returncode:
        sys.exit(f"{' '.join(command)}: {errors[-3000:]}")
    return seconds, peak, said.strip().rpartition("\n")[2]


class Sampler:
    """Watches the anonymous memory of a process from a thread, until it is told to stop."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._peak = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        """Return the peak, GiB."""
        self._stopped.set()
        self._thread.join()
        return self._peak

    def _watch(self) -> None:
        while not self._stopped.wait(0.01):
            self._peak = max(self._peak, anonymous_gib(self._process))


def anonymous_gib(process: int) -> float:
    """Return the anonymous resident memory of a process; 0 when it is gone."""
    try:
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 2**20
    except OSError:
        pass
    return 0.0


if __name__ == "__main__":
    main()
