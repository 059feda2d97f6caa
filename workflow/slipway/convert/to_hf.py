"""Rule `export_hf`: the Megatron weights of a training become a Hugging Face model like the one it began with."""

import errno
import fnmatch
import logging
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blake3 import blake3

from slipway.convert.bits import Bits, all_finite, same_bits
from slipway.convert.dcp_reader import TorchDistReader
from slipway.convert.hugging_face import HuggingFaceReader, HuggingFaceWriter
from slipway.convert.parameters import check_checkpoint, open_parameters, read_parts
from slipway.convert.progress import Progress
from slipway.errors import SlipwayError
from slipway.manifest import Manifest, Product, fingerprint, open_product, read_manifest, verify_files
from slipway.models.architecture import Architecture, read_architecture
from slipway.models.names import pieces
from slipway.models.source import check_unchanged, content_fingerprint, source_fingerprint
from slipway.models.weights import INDEX, read_tensors, tensor_digests, weights_digest

VERSION = 1
# Where verl 0.9.1 puts the actor's weights below global_step_<n>, with use_dist_checkpointing=True.
ACTOR_WEIGHTS = Path("actor/model/dist_ckpt")
# What is copied from the base model besides its weights.
COMPANIONS = (
    "config.json",
    "generation_config.json",
    INDEX,
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "vocab.*",
    "merges.txt",
    "*.tiktoken",
    "LICENSE*",
)
SPARE_BYTES = 64 * 2**20
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_INTEGERS = {2: torch.uint16, 4: torch.uint32, 8: torch.uint64}

logger = logging.getLogger(__name__)


@dataclass
class Outcome:
    """What became of the tensors: their digests, and which ones training changed.

    Buffers are apart: a router's bias moves with every update, even by a gradient of zero.
    """

    digests: dict[str, str] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    changed_buffers: set[str] = field(default_factory=set)


def export_hf(train: Path, base: Path, folder: Path, step: int | None = None) -> None:
    """Write a model of the finished training in folder `train` to `folder`, in the shape of `base`.

    `base` is the Hugging Face folder that the training began with: names, shapes, types, split into files, config and
    tokenizer are its. `step` names an earlier checkpoint; None is the last one, which the training's manifest names.
    Raises `SlipwayError` when the training or its checkpoint is incomplete, when a weight is not finite, or when the
    whole training changed no weight.
    """
    trained = read_manifest(train / "manifest.json", "train")
    checkpoint = Path(trained.facts["checkpoint"]) if step is None else Path(f"checkpoints/global_step_{step}")
    inputs: dict[str, Any] = {"version": VERSION, "base": source_fingerprint(base)}
    if step is None:
        inputs["train"] = trained.digest
    else:
        # not the training's manifest: a training that goes on changes no earlier checkpoint
        inputs |= {"checkpoint": str(checkpoint), "started": fingerprint(_of_start(trained))}
    with open_product("export_hf", folder / "manifest.json", folder, inputs) as product:
        if step is not None:
            product = _with_weights(product, train / checkpoint)
        if product.restore():
            return
        if step is None:
            verify_files(trained, train)
        _export(product, train / checkpoint, base, folder, {"checkpoint": str(checkpoint)}, refuse_equal=step is None)


def _of_start(trained: Manifest) -> dict[str, Any]:
    return {key: trained.inputs.get(key) for key in ("identity", "inputs")}


def _with_weights(product: Product, checkpoint: Path) -> Product:
    """Return the product as made from the weights of an earlier checkpoint, which is gone once it was exported or not.

    Raises `SlipwayError` when it is gone and was not exported.
    """
    weights = checkpoint / ACTOR_WEIGHTS
    if (weights / ".metadata").is_file():
        return product.with_inputs(product.inputs | {"weights": content_fingerprint(weights)})
    done = product.completed()
    if done is not None and done.inputs.items() >= product.inputs.items():
        return product.with_inputs(done.inputs)
    there = sorted(
        int(path.name.removeprefix("global_step_"))
        for path in checkpoint.parent.glob("global_step_*")
        if (path / ACTOR_WEIGHTS / ".metadata").is_file()
    )
    raise SlipwayError(
        f"{checkpoint}: no such checkpoint; those of steps {', '.join(map(str, there)) or '(none)'} are there. A run "
        "keeps the newest keep_checkpoints, and those that checkpoints.evaluate_every names while it trains"
    )


def _export(product: Product, step: Path, base: Path, folder: Path, facts: dict[str, Any], refuse_equal: bool) -> None:
    architecture = read_architecture(base)
    remove_model(folder)
    outcome = write_model(step / ACTOR_WEIGHTS, base, folder, architecture)
    companions = copy_companions(base, folder)  # the index among them, without which shards are no model
    check_unchanged(base, product.inputs["base"])
    written = read_tensors(folder)
    if tensor_digests(folder, written) != outcome.digests:
        raise SlipwayError(f"{folder}: the written weights are not those of {step}; the disk is not reliable")
    if refuse_equal and not outcome.changed:
        raise SlipwayError(
            f"{step}: no weight of {len(outcome.digests)} differs from those of {base}: the training changed nothing. "
            "See its learning rate, and whether its rewards differ within groups."
        )
    product.publish(
        [folder / file for file in {tensor.file for tensor in written.values()}] + companions,
        facts=facts
        | {
            "architecture": architecture.name,
            "parameters": architecture.parameter_count,
            "tensors": len(outcome.digests),
            "changed": len(outcome.changed | outcome.changed_buffers),
            "weights": weights_digest(written, outcome.digests),
        },
    )


def write_model(checkpoint: Path, base: Path, folder: Path, architecture: Architecture) -> Outcome:
    """Write the weights of a Megatron checkpoint into safetensors files like those of `base`."""
    source = TorchDistReader(checkpoint)
    check_checkpoint(source, architecture)
    before = open_parameters(base, architecture)
    tensors = read_tensors(base)
    size = sum(tensor.size for tensor in tensors.values())
    free = shutil.disk_usage(folder).free
    if free < size + SPARE_BYTES:
        raise SlipwayError(f"{folder}: needs {size / 1e9:.1f} GB, but only {free / 1e9:.1f} GB are free there")
    progress = Progress(logger, "writing the Hugging Face model", size)
    outcome = Outcome()
    # Some models store a tied output layer beside the embedding, and tables of the rotary embedding.
    tied = architecture.map.output_name if architecture.tied_embeddings else None
    try:
        writer = HuggingFaceWriter(folder, base, tensors)
        try:
            for piece in pieces(architecture):
                parts = read_parts(source, piece, architecture)
                for name, part in zip(piece.names, parts, strict=True):
                    # In the checkpoint's type: a base in float32 was rounded when training loaded it.
                    if not same_bits(_bits(part), _bits(_read(before, name).to(part.dtype))):
                        (outcome.changed if piece.trained else outcome.changed_buffers).add(name)
                    _write(writer, outcome, name, part)
                    progress.add(tensors[name].size)
                    if tied in tensors and name == architecture.map.embedding_name:
                        _write(writer, outcome, tied, part)
            rest = HuggingFaceReader(base, tensors)
            for name in tensors.keys() - outcome.digests.keys():
                _write(writer, outcome, name, _read(rest, name))
        finally:
            writer.close()
    except OSError as error:
        reason = "no space left" if error.errno == errno.ENOSPC else str(error)
        raise SlipwayError(f"{folder}: cannot write the model of {size / 1e9:.1f} GB: {reason}") from None
    return outcome


def copy_companions(base: Path, folder: Path) -> list[Path]:
    """Copy config, tokenizer and index of a model; return the copies."""
    copies = []
    for path in sorted(base.iterdir()):
        if path.is_file() and any(fnmatch.fnmatch(path.name, pattern) for pattern in COMPANIONS):
            copies.append(folder / path.name)
            shutil.copyfile(path, copies[-1])
    return copies


def remove_model(folder: Path) -> None:
    """Remove what an earlier export left, so that no stale weight file is taken for the model's."""
    for path in folder.iterdir():
        if path.is_file() and any(fnmatch.fnmatch(path.name, name) for name in (*COMPANIONS, "*.safetensors")):
            path.unlink()


def _write(writer: HuggingFaceWriter, outcome: Outcome, name: str, tensor: torch.Tensor) -> None:
    stored = tensor.to(DTYPES[writer.tensors[name].dtype])
    if stored is not tensor and not same_bits(_bits(stored.to(tensor.dtype)), _bits(tensor)):
        # a router's bias: Megatron keeps it in float32, even that of a base in bfloat16
        logger.warning("%s is rounded to %s, which the base model has it in", name, stored.dtype)
    bits = _bits(stored)
    if not all_finite(bits, writer.tensors[name].dtype):
        raise SlipwayError(
            f"{name} of the trained model has infinite or undefined elements; take an earlier checkpoint, and train "
            "with a lower learning rate or gradient norm"
        )
    writer.write(name, bits)
    outcome.digests[name] = blake3(bits.reshape(-1).view(np.uint8).data, max_threads=blake3.AUTO).hexdigest()


def _read(reader: HuggingFaceReader, name: str) -> torch.Tensor:
    return torch.from_numpy(reader.read(name)).view(DTYPES[reader.tensors[name].dtype])


def _bits(tensor: torch.Tensor) -> Bits:
    bits: Bits = tensor.contiguous().view(_INTEGERS[tensor.itemsize]).numpy()
    return bits
