"""Rule `make_demo_model`: a small Qwen2 that knows the task a little, made in a minute or two on a CPU."""

import logging
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet
import torch
from safetensors import SafetensorError
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer
from transformers.utils import logging as transformers_logging

from slipway.config.schema import DemoModel
from slipway.errors import SlipwayError
from slipway.manifest import open_product, read_manifest
from slipway.models.demo_dimensions import DEMO_MAX_POSITIONS, DEMO_VOCAB_SIZE
from slipway.models.demo_tokenizer import save_tokenizer, train_tokenizer

VERSION = 1
WARMUP_SPLIT = "warmup.parquet"
SAY_EVERY_SECONDS = 10.0
# Three times Qwen2's. So small a model learns faster from it, and Adam's steps in GRPO, whose size does not depend
# on that of the weights, disturb it less.
INITIALIZER_RANGE = 0.06
# Label that torch's cross entropy leaves out.
IGNORED = -100

logger = logging.getLogger(__name__)

Example = tuple[list[int], list[int]]


def make_demo_model(recipe: DemoModel, data_folder: Path, folder: Path) -> None:
    """Make the model of `recipe` in `folder`: Hugging Face files in bfloat16, and manifest.json.

    Trains on the warm-up split of `data_folder`, which shares no question with its other splits. Equal recipes and
    splits give equal weights on one machine.
    """
    prepared = read_manifest(data_folder / "manifest.json", "prepare_data")
    inputs = {
        "version": VERSION,
        "recipe": recipe.model_dump(exclude={"data"}),
        "warmup": prepared.hash_of(WARMUP_SPLIT),
    }
    with open_product("make_demo_model", folder / "manifest.json", folder, inputs) as product:
        if product.restore():
            return
        rows = pyarrow.parquet.read_table(data_folder / WARMUP_SPLIT).to_pylist()
        answers = _demonstrations([row["reward_model"]["ground_truth"] for row in rows], recipe)
        tokenizer = train_tokenizer([row["prompt"][-1]["content"] for row in rows], answers)
        examples = [_example(tokenizer, row, answer) for row, answer in zip(rows, answers, strict=True)]
        torch.manual_seed(recipe.seed)
        model = _new_model(recipe, tokenizer)
        loss = _warm_start(model, examples, recipe, tokenizer.pad_token_id)
        for stale in folder.glob("*.safetensors"):
            stale.unlink()
        transformers_logging.disable_progress_bar()
        try:
            model.bfloat16().save_pretrained(folder)
        except SafetensorError as error:  # no OSError, though a full disk is what it mostly says
            raise SlipwayError(f"{folder}: cannot write the model: {error}; the same command tries again") from None
        save_tokenizer(tokenizer, folder)
        product.publish(
            [
                path
                for path in folder.iterdir()
                if path.suffix in (".json", ".safetensors", ".jinja")
                and path.name not in ("manifest.json", ".complete.json", "provenance.json")
            ],
            facts={
                "parameters": sum(parameter.numel() for parameter in model.parameters()),
                "examples": len(examples),
                "loss": round(loss, 4),
            },
        )


def _new_model(recipe: DemoModel, tokenizer: Qwen2Tokenizer) -> Qwen2ForCausalLM:
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=DEMO_VOCAB_SIZE,
            hidden_size=recipe.hidden_size,
            intermediate_size=recipe.intermediate_size,
            num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads,
            num_key_value_heads=recipe.kv_heads,
            max_position_embeddings=DEMO_MAX_POSITIONS,
            tie_word_embeddings=False,
            initializer_range=INITIALIZER_RANGE,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            attn_implementation="sdpa",  # type: ignore[call-arg]
        )
    )
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None
    )
    return model


def _demonstrations(answers: list[str], recipe: DemoModel) -> list[str]:
    """Return how each answer is shown to the model: in the tags that count, or as a sentence, by seeded chance.

    Language models begin GRPO with some chance of answering in the form that is asked for; so does this one.
    """
    choose = random.Random(recipe.seed)
    return [
        f"<answer>{answer}</answer>" if choose.random() < recipe.tagged_share else f"It is {answer}."
        for answer in answers
    ]


def _example(tokenizer: Qwen2Tokenizer, row: dict, answer: str) -> Example:
    """Return prompt and answer as token ids; the answer ends with the token where generation stops."""
    prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False)
    prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    answer_ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
    if len(prompt_ids) + len(answer_ids) >= DEMO_MAX_POSITIONS:
        raise SlipwayError(
            f"warm-up question {row['extra_info']['question_id']}: {len(prompt_ids)} tokens; a demo model takes "
            f"at most {DEMO_MAX_POSITIONS}. Choose a data set with shorter questions."
        )
    return prompt_ids, [*answer_ids, tokenizer.eos_token_id]


def _warm_start(model: Qwen2ForCausalLM, examples: list[Example], recipe: DemoModel, pad: int) -> float:
    """Train on the answers by supervised learning; return the mean loss of the last tenth of the steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, recipe.steps))
    model.train()
    losses = []
    started = said = time.monotonic()
    for step, batch in enumerate(_batches(examples, recipe), start=1):
        ids, mask, labels = _pad_left(batch, pad)
        logits = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0),
            logits_to_keep=labels.shape[1] + 1,
        ).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if time.monotonic() - said > SAY_EVERY_SECONDS or step == recipe.steps:
            said = time.monotonic()
            left = (said - started) / step * (recipe.steps - step)
            logger.info("make_demo_model: step %d/%d, loss %.3f, %.0f s left", step, recipe.steps, losses[-1], left)
    tail = losses[-max(1, recipe.steps // 10) :]
    return sum(tail) / len(tail)


def _rate(step: int, steps: int) -> float:
    """Return the share of the peak learning rate: a short warm-up, then a cosine down to a tenth."""
    return min(1.0, (step + 1) / 30) * (0.1 + 0.45 * (1 + math.cos(math.pi * step / steps)))


def _batches(examples: list[Example], recipe: DemoModel) -> Iterator[list[Example]]:
    """Yield `recipe.steps` batches, epoch after epoch in a new seeded order."""
    choose = random.Random(recipe.seed)
    order: list[int] = []
    for _ in range(recipe.steps):
        while len(order) < recipe.batch_size:
            order += choose.sample(range(len(examples)), len(examples))
        yield [examples[index] for index in order[: recipe.batch_size]]
        del order[: recipe.batch_size]


def _pad_left(batch: list[Example], pad: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ids and mask, [batch, longest], and labels of the answers' positions, [batch, longest answer]."""
    longest = max(len(prompt) + len(answer) for prompt, answer in batch)
    longest_answer = max(len(answer) for _, answer in batch)
    ids = torch.full((len(batch), longest), pad)
    mask = torch.zeros((len(batch), longest), dtype=torch.long)
    labels = torch.full((len(batch), longest_answer), IGNORED)
    for row, (prompt, answer) in enumerate(batch):
        tokens = torch.tensor(prompt + answer)
        ids[row, -len(tokens) :] = tokens
        mask[row, -len(tokens) :] = 1
        labels[row, -len(answer) :] = torch.tensor(answer)
    return ids, mask, labels
