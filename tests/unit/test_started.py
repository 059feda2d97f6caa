"""What of a converted model a training depends on."""

from dataclasses import replace

from slipway.launch.started import model_digest
from slipway.manifest import FileEntry, Manifest

CONVERTED = Manifest(
    stage="convert_megatron",
    fingerprint="0" * 64,
    inputs={
        "version": 4,
        "source": {"files": {"config.json": "c" * 64}, "weights": {"model.safetensors": {"size": 9, "samples": "s"}}},
        "vocab_multiple": 1,
    },
    files=[FileEntry("checkpoint/__0_0.distcp", 100, "f" * 64)],
    facts={"weights": "w" * 64, "architecture": "qwen2"},
)


def test_another_converter_makes_no_other_model():
    newer = replace(
        CONVERTED,
        fingerprint="1" * 64,
        inputs=CONVERTED.inputs | {"version": 5},
        files=[FileEntry("checkpoint/__0_0.distcp", 96, "e" * 64)],
        facts=CONVERTED.facts | {"tensors": 2},
    )
    assert newer.digest != CONVERTED.digest
    assert model_digest(newer) == model_digest(CONVERTED)


def test_weights_config_and_padding_make_another():
    others = [
        replace(CONVERTED, facts=CONVERTED.facts | {"weights": "v" * 64}),
        replace(CONVERTED, inputs=CONVERTED.inputs | {"source": {"files": {"config.json": "d" * 64}}}),
        replace(CONVERTED, inputs=CONVERTED.inputs | {"vocab_multiple": 2}),
    ]
    assert len({model_digest(manifest) for manifest in (CONVERTED, *others)}) == 4
