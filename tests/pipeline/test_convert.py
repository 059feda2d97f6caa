"""Conversion there and back on real files, and parity of logits between transformers and real Megatron models."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import small_models
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from slipway.config.paths import ResultPaths
from slipway.config.schema import Model
from slipway.convert import layouts, to_megatron
from slipway.convert.to_hf import write_model
from slipway.convert.to_megatron import convert_megatron
from slipway.cpu.environment import environment
from slipway.errors import SlipwayError
from slipway.models.architecture import read_architecture
from slipway.models.maps import Layout
from slipway.models.source import local_folder

TOKENS = torch.randint(0, 96, (2, 12), generator=torch.Generator().manual_seed(0))
# TP, PP, EP
LAYOUTS = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)]
DIMENSIONS = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def make_model(kind: str) -> PreTrainedModel:
    """A small model whose tensors are all different, norms and biases included."""
    sizes = DIMENSIONS | ({"head_dim": 8} if kind in MIXTURES else {})
    model = small_models.build(kind.removesuffix("-tied"), sizes, tied=kind.endswith("-tied"))
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        around = 1.0 if parameter.ndim == 1 else 0.0
        parameter.data.copy_(around + 0.15 * torch.randn(parameter.shape, generator=generator))
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.15 * torch.randn(buffer.shape, generator=generator))
    return model.eval()


DENSE = ["qwen2", "qwen2-tied", "qwen3", "llama", "mistral"]
MIXTURES = ["mixtral", "qwen2-moe", "qwen3-moe", "deepseek-v3", "deepseek-v3-whole-queries"]
KINDS = DENSE + MIXTURES


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sources")
    for kind in KINDS:
        make_model(kind).save_pretrained(folder / kind)
    return {kind: folder / kind for kind in KINDS}


@pytest.fixture(scope="session")
def converted(sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("converted")
    for kind, source in sources.items():
        convert_megatron(source, folder / kind)
    return {kind: folder / kind for kind in sources}


@pytest.fixture(scope="session")
def permuted(sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a converter that takes keys for values, both ways, so that its own round trip is whole."""
    folder = tmp_path_factory.mktemp("permuted") / "qwen2"
    join, split = layouts.join, layouts.split

    def swapped(piece, parts):
        return [parts[0], parts[2], parts[1]] if piece.layout is Layout.GROUPED_QKV else list(parts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layouts, "join", lambda piece, parts, model: join(piece, swapped(piece, parts), model))
        patch.setattr(layouts, "split", lambda piece, tensor, model: swapped(piece, split(piece, tensor, model)))
        convert_megatron(sources["qwen2"], folder)
    return folder


@dataclass
class Logits:
    """Logits of every model: by transformers, and by Megatron by (model, TP, PP, EP)."""

    transformers: dict[str, torch.Tensor]
    megatron: dict[tuple[str, int, int, int], torch.Tensor]


@pytest.fixture(scope="session")
def logits(
    sources: dict[str, Path], converted: dict[str, Path], permuted: Path, tmp_path_factory: pytest.TempPathFactory
) -> Logits:
    folder = tmp_path_factory.mktemp("logits")
    checkpoints = {kind: (sources[kind], converted[kind]) for kind in KINDS} | {
        "permuted": (sources["qwen2"], permuted)
    }
    job = {
        "folder": str(folder),
        "layouts": LAYOUTS,
        "tokens": TOKENS.tolist(),
        "models": {
            name: {"hf": str(hf), "checkpoint": str(megatron / to_megatron.CHECKPOINT)}
            for name, (hf, megatron) in checkpoints.items()
        },
    }
    (folder / "job.json").write_text(json.dumps(job))
    root = str(Path(to_megatron.__file__).parents[2])
    result = subprocess.run(
        [sys.executable, Path(__file__).with_name("megatron_logits.py"), folder / "job.json"],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | environment() | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr[-4000:]
    with torch.no_grad():
        expected = {kind: make_model(kind)(TOKENS).logits for kind in KINDS}
    return Logits(
        expected,
        {
            (name, *layout): torch.load(folder / f"{name}-{'-'.join(map(str, layout))}.pt")
            for name in checkpoints
            for layout in LAYOUTS
            if layout[2] == 1 or name in MIXTURES
        },
    )


@pytest.mark.verl
@pytest.mark.parametrize(
    ("kind", "layout"), [(kind, layout) for kind in KINDS for layout in LAYOUTS if layout[2] == 1 or kind in MIXTURES]
)
def test_megatron_computes_what_transformers_does(logits: Logits, kind: str, layout: tuple[int, int, int]) -> None:
    computed = logits.megatron[kind, *layout].float()
    torch.testing.assert_close(computed, logits.transformers[kind], rtol=1e-4, atol=1e-4)


@pytest.mark.verl
def test_parity_would_notice_keys_taken_for_values(logits: Logits) -> None:
    difference = (logits.megatron["permuted", 1, 1, 1] - logits.transformers["qwen2"]).abs().max()
    assert difference > 0.1


def test_the_manifest_vouches_for_every_tensor(converted: dict[str, Path]) -> None:
    manifest = json.loads((converted["qwen2"] / "manifest.json").read_text())
    tensors = json.loads((converted["qwen2"] / to_megatron.TENSORS).read_text())
    assert manifest["facts"]["tensors"] == len(tensors) == 4 * 12 + 3
    assert "bit for bit" in manifest["facts"]["verdict"]


def test_a_conversion_does_without_torch(sources: dict[str, Path], tmp_path: Path) -> None:
    """Its import would take longer than most conversions."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path; from slipway.convert.to_megatron import convert_megatron; "
            "convert_megatron(Path(sys.argv[1]), Path(sys.argv[2])); assert 'torch' not in sys.modules",
            sources["qwen2"],
            tmp_path / "megatron",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": str(Path(to_megatron.__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_written_checkpoint_that_differs_is_refused(
    sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    join = layouts.join

    def one_row_wrong(piece, parts, model):
        whole = join(piece, parts, model).copy()
        whole[0] = 0
        return whole

    monkeypatch.setattr(layouts, "join", one_row_wrong)
    with pytest.raises(SlipwayError):
        convert_megatron(sources["qwen2"], tmp_path / "megatron")
    assert not (tmp_path / "megatron/manifest.json").exists()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_there_and_back_again_is_the_same_bit_for_bit(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    make_model(kind).to(dtype).save_pretrained(source, max_shard_size="20KB")
    convert_megatron(source, tmp_path / "megatron")
    back.mkdir()
    write_model(tmp_path / "megatron" / to_megatron.CHECKPOINT, source, back, read_architecture(source))
    shards = sorted(source.glob("*.safetensors"))
    assert len(shards) > 1
    assert {path.name: path.read_bytes() for path in back.iterdir()} == {
        path.name: path.read_bytes() for path in shards
    }
    assert {tensor.dtype for shard in shards for tensor in load_file(shard).values()} == {dtype}


def test_a_model_of_the_hub_is_converted_from_the_cache_and_its_commit_recorded(
    sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    cached = tmp_path / "cache/models--owner--name"
    shutil.copytree(sources["llama"], cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for revision in (None, "main", commit):
        folder = local_folder(Model(path="owner/name", revision=revision), "small", ResultPaths(tmp_path / "results"))
        convert_megatron(folder, tmp_path / "megatron")
        facts = json.loads((tmp_path / "megatron/manifest.json").read_text())["facts"]
        assert facts["hub_revision"] == commit
    with pytest.raises(SlipwayError, match="at revision 'other'"):
        local_folder(Model(path="owner/name", revision="other"), "small", ResultPaths(tmp_path / "results"))


def test_an_architecture_without_a_map_is_refused(sources: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(sources["llama"], tmp_path / "other")
    config = json.loads((tmp_path / "other/config.json").read_text())
    (tmp_path / "other/config.json").write_text(json.dumps(config | {"architectures": ["MysteryForCausalLM"]}))
    with pytest.raises(SlipwayError, match="MysteryForCausalLM is not supported; supported are"):
        convert_megatron(tmp_path / "other", tmp_path / "megatron")
