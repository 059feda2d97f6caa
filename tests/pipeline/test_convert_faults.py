"""What can go wrong with a conversion: one clear error each, and never a folder that looks finished and is not."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2Config, Qwen2ForCausalLM

from slipway.convert import to_megatron
from slipway.convert.to_megatron import CHECKPOINT, TENSORS, convert_megatron
from slipway.errors import SlipwayError

SIZES = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
ROOT = Path(to_megatron.__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "model"
    torch.manual_seed(0)
    Qwen2ForCausalLM(Qwen2Config(**SIZES)).to(torch.bfloat16).save_pretrained(folder, max_shard_size="8MB")
    return folder


@pytest.fixture
def source(model: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(model, tmp_path / "model")
    return tmp_path / "model"


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def change_index(folder: Path, change) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


def change_shard(path: Path, change) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def cut_off(folder: Path) -> None:
    with shards(folder)[1].open("r+b") as file:
        file.truncate(shards(folder)[1].stat().st_size - 100)


def move_in_index(folder: Path) -> None:
    change_index(folder, lambda names: names.update({"model.norm.weight": shards(folder)[0].name}))


def add_tensor(folder: Path) -> None:
    change_shard(shards(folder)[0], lambda tensors: tensors.update({"extra.weight": torch.zeros(2)}))
    change_index(folder, lambda names: names.update({"extra.weight": shards(folder)[0].name}))


def lose_tensor(folder: Path) -> None:
    change_shard(shards(folder)[-1], lambda tensors: tensors.pop("model.norm.weight"))
    change_index(folder, lambda names: names.pop("model.norm.weight"))


def widen_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 1536}))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut_off, "fetch it again"),
        (lambda folder: shards(folder)[0].unlink(), "missing, though model.safetensors.index.json lists it"),
        (move_in_index, "contradicts the files about model.norm.weight"),
        (add_tensor, "not known: extra.weight"),
        (lose_tensor, "missing: model.norm.weight"),
        (widen_config, "but config.json makes it"),
        (lambda folder: (folder / "config.json").write_text("{"), "not JSON"),
    ],
    ids=["cut off", "shard missing", "index", "extra tensor", "missing tensor", "config", "no config"],
)
def test_a_source_that_is_not_whole_is_refused_by_name(source: Path, tmp_path: Path, damage, words: str) -> None:
    damage(source)
    with pytest.raises(SlipwayError, match=words) as raised:
        convert_megatron(source, tmp_path / "megatron")
    assert str(source) in str(raised.value)
    assert not (tmp_path / "megatron/manifest.json").exists()


def test_elements_that_are_not_finite_are_reported(source: Path, tmp_path: Path) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"][3] = float("nan")

    change_shard(shards(source)[-1], spoil)
    convert_megatron(source, tmp_path / "megatron")
    manifest = json.loads((tmp_path / "megatron/manifest.json").read_text())
    assert manifest["facts"]["not_finite"] == 1
    tensors = json.loads((tmp_path / "megatron" / TENSORS).read_text())
    assert [name for name, facts in tensors.items() if not facts["finite"]] == ["model.norm.weight"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 10 MB; the model takes 28."""
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=10m", "tmpfs", folder], capture_output=True, text=True)
    if done.returncode:
        why = f"no file system can be mounted here: {done.stderr.strip()}"
        pytest.fail(why) if os.environ.get("CI") else pytest.skip(why)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_too_little_space_is_said_before_anything_is_written(model: Path, small_disk: Path) -> None:
    with pytest.raises(SlipwayError, match="GB are free there"):
        convert_megatron(model, small_disk / "megatron")
    assert not list((small_disk / "megatron" / CHECKPOINT).glob("*.distcp"))


def test_a_disk_that_fills_up_leaves_nothing_half_written(
    model: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 10**12))  # as if it filled up meanwhile
    with pytest.raises(SlipwayError, match=r"cannot write the checkpoint of .*no space left"):
        convert_megatron(model, small_disk / "megatron")
    assert not (small_disk / "megatron" / CHECKPOINT).exists()
    assert not (small_disk / "megatron/manifest.json").exists()


def test_killed_at_any_moment_it_never_looks_finished_and_can_be_done_again(model: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("killed_conversions.py"), model, tmp_path / "megatron", "10"],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) >= 5  # most were killed in the middle
    undisturbed = tmp_path / "measure"
    assert (tmp_path / "megatron/manifest.json").read_bytes() == (undisturbed / "manifest.json").read_bytes()


def test_of_two_at_once_one_works_and_the_other_takes_its_product(model: Path, tmp_path: Path) -> None:
    written = []
    write = to_megatron._write

    def counted(*arguments):
        written.append(1)
        write(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(to_megatron, "_write", counted)
        both = [threading.Thread(target=convert_megatron, args=(model, tmp_path / "megatron")) for _ in range(2)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join(120)
    assert len(written) == 1
    assert (tmp_path / "megatron/manifest.json").is_file()


@pytest.fixture
def while_it_is_written(monkeypatch: pytest.MonkeyPatch):
    """Lets something happen between the look at the source's headers and the reading of its tensors."""

    def happens(change) -> None:
        write = to_megatron._write
        monkeypatch.setattr(to_megatron, "_write", lambda *arguments: (change(), write(*arguments)))

    return happens


def test_a_source_of_which_some_files_are_replaced_meanwhile_gives_no_product(
    source: Path, tmp_path: Path, while_it_is_written
) -> None:
    def replace() -> None:
        new = tmp_path / "new.safetensors"
        save_file({key: value + 1 for key, value in load_file(shards(source)[1]).items()}, new, {"format": "pt"})
        new.replace(shards(source)[1])

    while_it_is_written(replace)
    with pytest.raises(SlipwayError, match="the model changed while it was read"):
        convert_megatron(source, tmp_path / "megatron")
    assert not (tmp_path / "megatron/manifest.json").exists()


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda path: os.truncate(path, 5000), "has 5000 bytes, but those from"),
        (lambda path: os.truncate(path, 0), "has 0 bytes, but those from"),
        (lambda path: path.unlink(), "cannot be read .No such file"),
    ],
)
def test_a_source_that_is_cut_off_or_removed_meanwhile_is_named(
    source: Path, tmp_path: Path, while_it_is_written, change, words: str
) -> None:
    path = shards(source)[1]
    while_it_is_written(lambda: change(path))
    with pytest.raises(SlipwayError, match=f"{path.name}: {words}"):
        convert_megatron(source, tmp_path / "megatron")


def test_layers_of_different_types_are_refused_before_anything_is_written(source: Path, tmp_path: Path) -> None:
    for path in shards(source):
        change_shard(
            path,
            lambda tensors: tensors.update(
                {key: value.float() for key, value in tensors.items() if ".layers.1." in key}
            ),
        )
    with pytest.raises(SlipwayError, match=r"decoder\.layers\.\S+ are of type BF16, others of F32"):
        convert_megatron(source, tmp_path / "megatron")
    assert not list((tmp_path / "megatron").rglob("*.distcp"))
