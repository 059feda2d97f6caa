"""Rule `convert_megatron`: a Hugging Face folder becomes a Megatron checkpoint, proven on the written files."""

import errno
import logging
import math
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3

from slipway.convert import layouts
from slipway.convert.bits import all_finite, as_bytes, same_bits
from slipway.convert.hugging_face import HuggingFaceReader
from slipway.convert.parameters import open_checkpoint, open_parameters, read_parts
from slipway.convert.progress import Progress
from slipway.convert.torch_dist import Chunk, MappedReader, TorchDistReader, write_checkpoint
from slipway.errors import SlipwayError
from slipway.manifest import open_product, syncing, write_json
from slipway.models.architecture import Architecture, read_architecture
from slipway.models.maps import Layout
from slipway.models.names import Piece, extra_state_keys, pieces
from slipway.models.source import hub_revision, source_fingerprint
from slipway.models.weights import weights_digest

VERSION = 4
CHECKPOINT = "checkpoint"
TENSORS = "tensors.json"
# For file headers and indexes, besides the tensors themselves.
SPARE_BYTES = 64 * 2**20
# Each has one tensor's parts in memory, where these do not lie in the files as they are.
VERIFYING_THREADS = 2

logger = logging.getLogger(__name__)


def convert_megatron(source: Path, folder: Path, vocab_multiple: int = 1) -> None:
    """Convert the model in `source` into `folder`: manifest.json, tensors.json and `checkpoint/`.

    `vocab_multiple`: rows of zeros are added until the vocabulary is a multiple of it (for tensor parallelism).
    Raises `SlipwayError` when the source is damaged or not supported, or when the written checkpoint is not
    the source bit for bit.
    """
    architecture = read_architecture(source)
    inputs = {"version": VERSION, "source": source_fingerprint(source), "vocab_multiple": vocab_multiple}
    with open_product("convert_megatron", folder / "manifest.json", folder, inputs) as product:
        if product.restore():
            return
        reader = open_parameters(source, architecture)
        checkpoint = folder / CHECKPOINT
        shutil.rmtree(checkpoint, ignore_errors=True)
        _write(reader, architecture, checkpoint, vocab_multiple)
        with syncing(checkpoint.iterdir()):
            verified = verify(reader, architecture, checkpoint)
        write_json(folder / TENSORS, verified)
        not_finite = sorted(name for name, facts in verified.items() if not facts["finite"])
        if not_finite:
            logger.warning(
                "convert_megatron: %d tensors of %s have infinite or undefined elements, the first is %s",
                len(not_finite),
                source,
                not_finite[0],
            )
        product.publish(
            [*checkpoint.iterdir(), folder / TENSORS],
            facts={
                "architecture": architecture.name,
                "hub_revision": hub_revision(source),
                "parameters": architecture.parameter_count,
                "tensors": len(verified),
                "verdict": "every tensor of the written checkpoint equals its source bit for bit",
                "not_finite": len(not_finite),
                "weights": weights_digest(reader.tensors, {name: facts["blake3"] for name, facts in verified.items()}),
            },
        )


def verify(reader: HuggingFaceReader, architecture: Architecture, checkpoint: Path) -> dict[str, dict[str, Any]]:
    """Read a written checkpoint back and compare every tensor with its source, bit for bit.

    Returns, by Hugging Face name, the Megatron key, its index by layer and expert, shape, type, BLAKE3 digest of the
    bytes and whether all elements are finite. Raises `SlipwayError` naming the first tensor that differs.
    """
    written = open_checkpoint(checkpoint, architecture, MappedReader)
    for weight in architecture.weights:
        if weight.layout is Layout.VOCABULARY:
            _check_padding(written, weight.key, architecture)
    found: dict[str, dict[str, Any]] = {}
    # all of the work is done outside of Python's lock
    with ThreadPoolExecutor(VERIFYING_THREADS) as pool:
        for verified in pool.map(partial(_verify_piece, reader, written, architecture), pieces(architecture)):
            found |= verified
    return found


def _verify_piece(
    reader: HuggingFaceReader, written: TorchDistReader, architecture: Architecture, piece: Piece
) -> dict[str, dict[str, Any]]:
    found = {}
    for name, part in zip(piece.names, read_parts(written, piece, architecture), strict=True):
        if not same_bits(reader.read(name), part):
            raise SlipwayError(
                f"{written.folder}: {piece.key}{f' at {list(piece.index)}' if piece.index else ''} differs from "
                f"{name} of {reader.folder}; convert again (if the source changed meanwhile, that is why)"
            )
        found[name] = {
            "megatron": piece.key,
            "index": list(piece.index),
            "shape": list(part.shape),
            "dtype": reader.tensors[name].dtype,
            "blake3": blake3(as_bytes(part).numpy().data, max_threads=blake3.AUTO).hexdigest(),
            "finite": all_finite(part),
        }
    return found


def _check_padding(written: TorchDistReader, key: str, architecture: Architecture) -> None:
    rows, *width = written.shapes[key]
    padding = rows - architecture.vocab_size
    if padding and torch.count_nonzero(written.read(key, [architecture.vocab_size, 0], [padding, *width])):
        raise SlipwayError(f"{written.folder}: {key} has content in the rows that pad the vocabulary")


def _write(reader: HuggingFaceReader, architecture: Architecture, folder: Path, vocab_multiple: int) -> None:
    size = sum(tensor.size for tensor in reader.tensors.values())
    folder.mkdir(parents=True)
    free = shutil.disk_usage(folder).free
    if free < size + SPARE_BYTES:
        raise SlipwayError(f"{folder}: needs {size / 1e9:.1f} GB, but only {free / 1e9:.1f} GB are free there")
    progress = Progress(logger, "writing the Megatron checkpoint", size)
    chunks = [
        chunk
        for piece in pieces(architecture)
        for chunk in _chunks(reader, piece, architecture, vocab_multiple, progress)
    ]
    try:
        write_checkpoint(folder, chunks, extra_state_keys(architecture))
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        reason = "no space left" if error.errno == errno.ENOSPC else str(error)
        raise SlipwayError(f"{folder}: cannot write the checkpoint of {size / 1e9:.1f} GB: {reason}") from None


def _chunks(
    reader: HuggingFaceReader, piece: Piece, architecture: Architecture, vocab_multiple: int, progress: Progress
) -> Iterator[Chunk]:
    """Yield what is written of a piece: as Megatron itself does, gate and up apart, everything else whole."""
    dtypes = {reader.dtype(name) for name in piece.names}
    if len(dtypes) > 1:
        raise SlipwayError(f"{reader.folder}: {', '.join(piece.names)} are of different types, but make one tensor")
    rows, width = piece.shape[0], piece.shape[1:]
    if piece.layout is Layout.VOCABULARY:
        rows = layouts.padded_rows(rows, vocab_multiple)
    slices = [(piece.names, 0, rows)]
    if piece.layout is Layout.ROWS:
        starts = accumulate((shape[0] for shape in piece.shapes), initial=0)
        slices = [
            ((name,), start, shape[0]) for name, shape, start in zip(piece.names, piece.shapes, starts, strict=False)
        ]
    for names, start, count in slices:
        whole = (*piece.stack, rows, *width)
        offset = (*piece.index, start, *(0 for _ in width))
        shape = (*(1 for _ in piece.index), count, *width)
        make = partial(_make, reader, piece, names, shape, architecture, progress)
        yield Chunk(piece.key, whole, offset, shape, next(iter(dtypes)), make)


def _make(
    reader: HuggingFaceReader,
    piece: Piece,
    names: tuple[str, ...],
    shape: tuple[int, ...],
    architecture: Architecture,
    progress: Progress,
) -> torch.Tensor:
    parts = [reader.read(name) for name in names]
    progress.add(sum(part.nbytes for part in parts))
    tensor = layouts.join(piece, parts, architecture) if names == piece.names else parts[0]
    if tensor.numel() < math.prod(shape):
        tensor = torch.cat([tensor, tensor.new_zeros(shape[0] - len(tensor), *shape[1:])])
    return tensor.view(shape)
