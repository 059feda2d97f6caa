"""What is written without torch is what torch writes, byte for byte where it is torch.save's."""

import io
import pickle
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from slipway.convert.archive import object_archive, tensor_archive
from slipway.convert.dcp_metadata import DTYPES as NAMES
from slipway.convert.dcp_metadata import MemoryFormat
from slipway.convert.dcp_reader import TorchDistReader
from slipway.convert.torch_dist import Chunk, WrittenCheckpoint, write_checkpoint
from slipway.errors import SlipwayError

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


class Edges(io.RawIOBase):
    """Keeps what is written but for long parts, of which it keeps the length."""

    def __init__(self) -> None:
        self.parts: list[bytes | int] = [b""]

    def writable(self) -> bool:
        return True

    def write(self, content) -> int:  # type: ignore[no-untyped-def]
        view = memoryview(content).cast("B")
        if len(view) > 2**20:
            self.parts += [len(view), b""]
        else:
            self.parts[-1] += bytes(view)  # type: ignore[operator]
        return len(view)


@pytest.fixture(autouse=True)
def without_checksums():
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    yield
    torch.serialization.set_crc32_options(before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (1,), (300, 70), (1, 1, 5), (4, 70000), (1, 256, 2, 3)])
def test_a_tensor_is_saved_as_torch_saves_it(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape).to(DTYPES[dtype])
    saved = io.BytesIO()
    torch.save(tensor, saved)
    archive = tensor_archive(dtype, shape)
    payload = tensor.view(-1).view(torch.uint8).numpy().tobytes()
    assert archive.head + payload + archive.tail == saved.getvalue()
    assert (archive.size, archive.payload_size) == (len(saved.getvalue()), len(payload))


@pytest.mark.parametrize("count", [2**31 - 1, 2**31 + 4])
def test_so_is_one_beyond_the_bounds_of_a_zip_archive(count: int) -> None:
    saved = Edges()
    torch.save(torch.zeros(count, dtype=torch.bfloat16), saved)  # the system gives pages when they are written to
    archive = tensor_archive("BF16", (count,))
    assert [archive.head, 2 * count, archive.tail] == saved.parts


@pytest.mark.parametrize("value", [[None], {}, ["a", 1]])
def test_an_object_is_saved_as_torch_saves_it(value: object) -> None:
    saved = io.BytesIO()
    torch.save(value, saved)
    assert object_archive(value) == saved.getvalue()


def chunk(key: str, whole: tuple[int, ...], offset: tuple[int, ...], content: np.ndarray, dtype: str = "BF16") -> Chunk:
    return Chunk(key, whole, offset, content.shape, dtype, lambda: content)


@pytest.fixture
def contents() -> dict[tuple[str, tuple[int, ...]], np.ndarray]:
    numbers = np.random.default_rng(0)
    return {
        ("apart", (0, 0)): numbers.integers(0, 2**16, (5, 7), np.uint16),
        ("apart", (5, 0)): numbers.integers(0, 2**16, (2, 7), np.uint16),
        ("whole", (0,)): numbers.integers(0, 2**16, 3, np.uint16),
    }


@pytest.fixture
def written(tmp_path: Path, contents) -> Path:
    wholes = {"apart": (7, 7), "whole": (3,)}
    chunks = [chunk(key, wholes[key], offset, content) for (key, offset), content in contents.items()]
    write_checkpoint(tmp_path, chunks, ["layer._extra_state/shard_0_1"])
    return tmp_path


def test_the_table_of_contents_is_read_by_torch_as_its_own(written: Path) -> None:
    properties = TensorProperties(torch.bfloat16)
    boxes = [((0, 0), (5, 7)), ((5, 0), (2, 7))]
    read = dcp.FileSystemReader(written).read_metadata()
    assert type(read) is Metadata
    assert read.state_dict_metadata == {
        "apart": TensorStorageMetadata(
            properties, torch.Size((7, 7)), [ChunkStorageMetadata(*map(torch.Size, box)) for box in boxes]
        ),
        "whole": TensorStorageMetadata(
            properties, torch.Size((3,)), [ChunkStorageMetadata(torch.Size((0,)), torch.Size((3,)))]
        ),
        "layer._extra_state/shard_0_1": BytesStorageMetadata(),
    }
    assert {(index.fqn, index.offset, index.index) for index in read.storage_data} == {
        ("apart", torch.Size((0, 0)), 0),
        ("apart", torch.Size((5, 0)), 1),
        ("whole", torch.Size((0,)), 0),
        ("layer._extra_state/shard_0_1", None, None),
    }
    assert all(type(index) is MetadataIndex for index in read.storage_data)
    assert read.version == "1.0.0"


def test_torch_reads_every_chunk_and_object_where_it_says(written: Path, contents) -> None:
    for index, place in dcp.FileSystemReader(written).read_metadata().storage_data.items():
        part = (written / place.relative_path).read_bytes()[place.offset : place.offset + place.length]
        value = torch.load(io.BytesIO(part))
        if index.offset is None:
            assert value == [None]
        else:
            assert np.array_equal(value.view(torch.uint16).numpy(), contents[index.fqn, tuple(index.offset)])
    assert torch.load(written / "common.pt") == {}


def test_a_tensor_takes_the_same_entries_and_bytes_as_with_dcps_writer(written: Path, contents) -> None:
    found = dcp.FileSystemReader(written).read_metadata()
    dcp.save(
        {"whole": torch.from_numpy(contents["whole", (0,)].copy()).view(torch.bfloat16)},
        checkpoint_id=written / "by torch",
        no_dist=True,
    )
    theirs = dcp.FileSystemReader(written / "by torch").read_metadata()
    assert found.state_dict_metadata["whole"] == theirs.state_dict_metadata["whole"]
    (index, place), (our_index, our_place) = (
        next((index, place) for index, place in metadata.storage_data.items() if index.fqn == "whole")
        for metadata in (theirs, found)
    )
    assert (index, index.index) == (our_index, our_index.index)
    ours = (written / our_place.relative_path).read_bytes()[our_place.offset : our_place.offset + our_place.length]
    assert len(ours) == place.length
    assert vars(place).keys() == vars(our_place).keys()


def test_what_was_written_is_read_back(written: Path, contents) -> None:
    checkpoint = WrittenCheckpoint(written)
    assert checkpoint.shapes == {"apart": (7, 7), "whole": (3,)}
    assert checkpoint.dtype("apart") == "BF16"
    for (key, offset), content in contents.items():
        assert np.array_equal(checkpoint.read(key, offset, content.shape), content)
    with pytest.raises(SlipwayError, match=r"apart has no chunk of shape \[7, 7\]"):
        checkpoint.read("apart", (0, 0), (7, 7))


def test_damage_around_a_tensor_is_noticed(written: Path, contents) -> None:
    place = dcp.FileSystemReader(written).read_metadata().storage_data[MetadataIndex("whole", torch.Size((0,)))]
    path = written / place.relative_path
    archive, whole = tensor_archive("BF16", (3,)), path.read_bytes()
    for damaged in (0, len(archive.head) - 1, len(archive.head) + archive.payload_size, archive.size - 1):
        content = bytearray(whole)
        content[place.offset + damaged] ^= 1
        path.write_bytes(content)
        with pytest.raises(SlipwayError, match="the checkpoint is damaged"):
            WrittenCheckpoint(written).read("whole", (0,), (3,))


@pytest.mark.parametrize(
    "content",
    [b"", b"nothing", pickle.dumps([1]), pickle.dumps(zlib.crc32)],
)
def test_a_table_of_contents_that_is_none_is_refused(written: Path, content: bytes) -> None:
    (written / ".metadata").write_bytes(content)
    with pytest.raises(SlipwayError, match=r"\.metadata: damaged"):
        WrittenCheckpoint(written)


def test_whatever_bit_of_the_table_of_contents_is_damaged_both_readers_say_so_or_read_the_same(written: Path) -> None:
    path, shape = written / ".metadata", (5, 7)
    whole, read = path.read_bytes(), WrittenCheckpoint(written).read("apart", (0, 0), shape).copy()
    refused = 0
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        for reader in (WrittenCheckpoint, TorchDistReader):
            try:
                opened = reader(written)
                if "apart" not in opened.shapes:  # a name that is another now
                    continue
                found = opened.read("apart", (0, 0), shape)
            except SlipwayError:
                refused += 1
                continue
            if opened.dtype("apart") in ("BF16", torch.bfloat16):
                bits = found.view(torch.uint16).numpy() if isinstance(found, torch.Tensor) else found
                assert np.array_equal(bits, read)
    assert refused > 100


def test_damage_around_a_tensor_is_named_whatever_torch_makes_of_it(written: Path, contents) -> None:
    reader, archive = TorchDistReader(written), tensor_archive("BF16", (3,))
    place = reader._metadata.storage_data[MetadataIndex("whole", torch.Size((0,)))]
    path = written / place.relative_path
    whole, refused = path.read_bytes(), 0
    for damaged in range(len(archive.head)):
        content = bytearray(whole)
        content[place.offset + damaged] ^= 0x80
        path.write_bytes(content)
        try:
            reader.read("whole", (0,), (3,))
        except SlipwayError as error:
            refused += 1
            assert "cannot read whole" in str(error)
    assert refused > 100


def test_an_overlap_does_not_make_up_for_a_gap(tmp_path: Path) -> None:
    content = np.arange(4, dtype=np.uint16)
    # of eight elements one is there twice, and the last missing
    write_checkpoint(tmp_path, [chunk("key", (8,), offset, content) for offset in [(0,), (3,)]], [])
    with pytest.raises(SlipwayError, match="with gaps or overlaps"):
        TorchDistReader(tmp_path).read("key", (0,), (8,))


def test_types_have_the_names_of_torchs() -> None:
    assert {name: getattr(torch, stands_for.name) for name, stands_for in NAMES.items()} == DTYPES


def test_the_table_of_contents_names_no_function_on_any_python() -> None:
    """Python up to 3.11.3 pickles an enumeration's member by `getattr`, which no reader of ours takes."""
    assert MemoryFormat.CONTIGUOUS.__reduce_ex__(4) == (MemoryFormat, (0,))
