"""Rule `convert_megatron`: a Hugging Face folder becomes a Megatron checkpoint, proven on the written files."""

import errno
import logging
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from slipway.convert import layouts
from slipway.convert.bits import Bits, facts_of
from slipway.convert.hugging_face import HuggingFaceReader
from slipway.convert.parameters import check_checkpoint, open_parameters, read_parts
from slipway.convert.progress import Progress
from slipway.convert.torch_dist import Chunk, WrittenCheckpoint, write_checkpoint
from slipway.errors import SlipwayError
from slipway.manifest import hashing, open_product, syncing, write_json
from slipway.models.architecture import Architecture, read_architecture
from slipway.models.maps import Layout
from slipway.models.names import Piece, extra_state_keys, pieces
from slipway.models.source import check_unchanged, hub_revision, source_fingerprint
from slipway.models.weights import weights_digest

VERSION = 5
CHECKPOINT = "checkpoint"
TENSORS = "tensors.json"
# For file headers and indexes, besides the tensors themselves.
SPARE_BYTES = 64 * 2**20
# Each has one tensor's parts in memory, where these do not lie in the files as they are.
VERIFYING_THREADS = min(4, len(os.sched_getaffinity(0)))

logger = logging.getLogger(__name__)


def convert_megatron(source: Path, folder: Path, vocab_multiple: int = 1) -> None:
    """Convert the model in `source` into `folder`: manifest.json, tensors.json and `checkpoint/`.

    `vocab_multiple`: rows of zeros are added until the vocabulary is a multiple of it (for tensor parallelism).
    Raises `SlipwayError` when the source is damaged or not supported, or when the written checkpoint is not
    the source bit for bit.
    """
    architecture = read_architecture(source)
    inputs: dict[str, Any] = {
        "version": VERSION,
        "source": source_fingerprint(source),
        "vocab_multiple": vocab_multiple,
    }
    with open_product("convert_megatron", folder / "manifest.json", folder, inputs) as product:
        if product.restore():
            return
        reader = open_parameters(source, architecture)
        checkpoint = folder / CHECKPOINT
        shutil.rmtree(checkpoint, ignore_errors=True)
        _write(reader, architecture, checkpoint, vocab_multiple)
        written = sorted(checkpoint.iterdir())
        with syncing(written), hashing(written) as digests:
            verified = verify(reader, architecture, checkpoint)
        check_unchanged(source, inputs["source"])
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
            [*written, folder / TENSORS],
            facts={
                "architecture": architecture.name,
                "hub_revision": hub_revision(source),
                "parameters": architecture.parameter_count,
                "tensors": len(verified),
                "verdict": "every tensor of the written checkpoint equals its source bit for bit",
                "not_finite": len(not_finite),
                "weights": weights_digest(reader.tensors, {name: facts["blake3"] for name, facts in verified.items()}),
            },
            digests=digests,
        )


def verify(reader: HuggingFaceReader, architecture: Architecture, checkpoint: Path) -> dict[str, dict[str, Any]]:
    """Read a written checkpoint back and compare every tensor with its source, bit for bit.

    Returns, by Hugging Face name, the Megatron key, its index by layer and expert, shape, type, BLAKE3 digest of the
    bytes and whether all elements are finite. Raises `SlipwayError` naming the first tensor that differs.
    """
    written = WrittenCheckpoint(checkpoint)
    check_checkpoint(written, architecture)
    for weight in architecture.weights:
        if weight.layout is Layout.VOCABULARY:
            _check_padding(written, weight.key, architecture.vocab_size)
    found: dict[str, dict[str, Any]] = {}
    # all of the work is done outside of Python's lock
    with ThreadPoolExecutor(VERIFYING_THREADS) as pool:
        for verified in pool.map(partial(_verify_piece, reader, written, architecture), pieces(architecture)):
            found |= verified
    return found


def _verify_piece(
    reader: HuggingFaceReader, written: WrittenCheckpoint, architecture: Architecture, piece: Piece
) -> dict[str, dict[str, Any]]:
    found = {}
    for name, part in zip(piece.names, read_parts(written, piece, architecture), strict=True):
        dtype = reader.tensors[name].dtype
        facts = facts_of(part, dtype, expected=reader.read(name)) if written.dtype(piece.key) == dtype else None
        if facts is None:
            raise SlipwayError(
                f"{written.folder}: {piece.key}{f' at {list(piece.index)}' if piece.index else ''} differs from "
                f"{name} of {reader.folder}; convert again (if the source changed meanwhile, that is why)"
            )
        found[name] = {
            "megatron": piece.key,
            "index": list(piece.index),
            "shape": list(part.shape),
            "dtype": dtype,
            "blake3": facts.digest,
            "finite": facts.finite,
        }
    return found


def _check_padding(written: WrittenCheckpoint, key: str, vocabulary: int) -> None:
    shape = written.shapes[key]
    if shape[0] > vocabulary and np.any(written.read(key, [0] * len(shape), shape)[vocabulary:]):
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
    _check_types(reader, chunks)
    try:
        write_checkpoint(folder, chunks, extra_state_keys(architecture))
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        reason = "no space left" if error.errno == errno.ENOSPC else str(error)
        raise SlipwayError(f"{folder}: cannot write the checkpoint of {size / 1e9:.1f} GB: {reason}") from None


def _check_types(reader: HuggingFaceReader, chunks: Sequence[Chunk]) -> None:
    """Raise `SlipwayError` when one of Megatron's tensors, which may hold all layers, would be of several types."""
    types: dict[str, str] = {}
    for chunk in chunks:
        if types.setdefault(chunk.key, chunk.dtype) != chunk.dtype:
            raise SlipwayError(
                f"{reader.folder}: some tensors that make {chunk.key} are of type {types[chunk.key]}, others of "
                f"{chunk.dtype}; save the model in one type"
            )


def _chunks(
    reader: HuggingFaceReader, piece: Piece, architecture: Architecture, vocab_multiple: int, progress: Progress
) -> Iterator[Chunk]:
    """Yield what is written of a piece: as Megatron itself does, gate and up apart, everything else whole."""
    dtypes = {reader.tensors[name].dtype for name in piece.names}
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
) -> Bits:
    parts = [reader.read(name) for name in names]
    progress.add(sum(part.nbytes for part in parts))
    bits = layouts.join(piece, parts, architecture) if names == piece.names else parts[0]
    if bits.size < math.prod(shape):
        bits = np.concatenate([bits, np.zeros((shape[0] - len(bits), *shape[1:]), bits.dtype)])
    return bits.reshape(shape)
