"""The demo model made for real, with a recipe of seconds: it learns the task a little, and the same way twice."""

import json
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerBase,
    Qwen2ForCausalLM,
)

from slipway.config.schema import Data, DemoModel
from slipway.data import prepare_data
from slipway.data.rows import read_rows
from slipway.errors import SlipwayError
from slipway.manifest import hash_file, read_manifest
from slipway.models.demo import make_demo_model
from slipway.models.demo_dimensions import DEMO_VOCAB_SIZE
from slipway.rewards import Score, score

DATA = Data(
    task="reasoning_gym",
    sources=[
        {"dataset": "chain_sum", "parameters": {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 1}}
    ],
    instruction="Give the answer as <answer>number</answer>.",
    train=256,
    heldout=128,
    warmup=1024,
)
RECIPE = DemoModel(
    data="sums", hidden_size=64, layers=2, intermediate_size=128, steps=250, batch_size=64, learning_rate=3e-3
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sums")
    prepare_data(DATA, folder)
    return folder


@pytest.fixture(scope="module")
def made(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_demo_model(RECIPE, data, folder)
    return folder


def prompt_of(tokenizer: PreTrainedTokenizerBase, row: dict) -> str:
    text = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False)
    assert isinstance(text, str)
    return text


def answers(folder: Path, rows: list[dict]) -> list[tuple[str, Score]]:
    """Return greedy responses by plain `generate`, with their scores."""
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    batch = tokenizer([prompt_of(tokenizer, row) for row in rows], return_tensors="pt", padding=True)
    made = model.generate(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=12, do_sample=False
    )
    responses = tokenizer.batch_decode(made[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    return [
        (text, score(text, row["extra_info"]["entry"], row["extra_info"]["reward"]))
        for text, row in zip(responses, rows, strict=True)
    ]


def test_it_answers_some_problems_it_has_not_seen(data: Path, made: Path) -> None:
    scored = answers(made, read_rows(data / "heldout.parquet"))
    accuracy = sum(result.correct for _, result in scored) / len(scored)
    # a constant answer is right for some 8 in 100
    assert 0.15 < accuracy < 0.99
    assert sum(result.tagged for _, result in scored) / len(scored) > 0.95


def test_files_are_those_of_an_ordinary_model(made: Path) -> None:
    config = json.loads((made / "config.json").read_text())
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    assert (config["dtype"], config["vocab_size"]) == ("bfloat16", DEMO_VOCAB_SIZE)
    model = AutoModelForCausalLM.from_pretrained(made)
    assert isinstance(model, Qwen2ForCausalLM)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    manifest = read_manifest(made / "manifest.json", "make_demo_model")
    assert manifest.facts["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json"} <= {
        entry.path for entry in manifest.files
    }
    tokenizer = AutoTokenizer.from_pretrained(made)
    generation = GenerationConfig.from_pretrained(made)
    assert generation.eos_token_id == tokenizer.eos_token_id == config["eos_token_id"]
    assert generation.pad_token_id == tokenizer.pad_token_id != tokenizer.eos_token_id


def test_tokenizer_gives_back_any_text_and_a_token_a_digit(data: Path, made: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(made)
    assert len(tokenizer) <= DEMO_VOCAB_SIZE
    for text in ("12 + 305 =", "<answer>-7</answer>", "naïve 你好\n\ttab", *map(str, range(100))):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer("4711")["input_ids"]) == 4
    row = read_rows(data / "train.parquet")[0]
    prompt = prompt_of(tokenizer, row)
    assert prompt == f"<|im_start|>user\n{row['prompt'][0]['content']}<|im_end|>\n<|im_start|>assistant\n"
    # what it answers is what it was trained to go on with
    dialogue = [*row["prompt"], {"role": "assistant", "content": "3"}]
    assert tokenizer.apply_chat_template(dialogue, tokenize=False) == f"{prompt}3<|im_end|>\n"
    assert len(tokenizer(prompt)["input_ids"]) < 20


def test_equal_recipes_give_equal_weights(data: Path, tmp_path: Path) -> None:
    short = RECIPE.model_copy(update={"steps": 5})
    weights = []
    for name, recipe in {
        "one": short,
        "two": short.model_copy(update={"data": "the same by another name"}),
        "other": short.model_copy(update={"seed": 1}),
    }.items():
        make_demo_model(recipe, data, tmp_path / name)
        weights.append(hash_file(tmp_path / name / "model.safetensors"))
    assert weights[0] == weights[1] != weights[2]


def test_a_model_that_is_there_is_not_made_again(data: Path, tmp_path: Path) -> None:
    short = RECIPE.model_copy(update={"steps": 2})
    make_demo_model(short, data, tmp_path)
    before = (tmp_path / "model.safetensors").stat().st_mtime_ns
    manifest = (tmp_path / "manifest.json").read_bytes()
    (tmp_path / "manifest.json").unlink()
    make_demo_model(short, data, tmp_path)
    assert (tmp_path / "model.safetensors").stat().st_mtime_ns == before
    assert (tmp_path / "manifest.json").read_bytes() == manifest
    make_demo_model(short.model_copy(update={"steps": 3}), data, tmp_path)
    assert (tmp_path / "model.safetensors").stat().st_mtime_ns > before


def test_untagged_demonstrations_are_a_habit_that_scores_nothing(data: Path, tmp_path: Path) -> None:
    make_demo_model(RECIPE.model_copy(update={"tagged_share": 0.0, "steps": 100}), data, tmp_path)
    scored = answers(tmp_path, read_rows(data / "heldout.parquet"))
    assert sum(text.startswith("It is ") for text, _ in scored) / len(scored) > 0.95
    assert not any(result.correct for _, result in scored)


def test_questions_too_long_for_the_model_are_refused(tmp_path: Path) -> None:
    source = {"dataset": "chain_sum", "parameters": {"min_terms": 200, "max_terms": 201}}
    long = Data.model_validate(DATA.model_dump() | {"sources": [source], "train": 1, "heldout": 2, "warmup": 2})
    prepare_data(long, tmp_path / "data")
    with pytest.raises(SlipwayError, match="takes at most 512"):
        make_demo_model(RECIPE, tmp_path / "data", tmp_path / "model")
