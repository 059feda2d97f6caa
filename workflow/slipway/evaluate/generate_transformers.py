"""Generation with transformers: batched, left-padded, with its key/value cache.

Every answer has its own random stream, seeded by (seed, question, sample). Up to the rounding of float32
sums, which depends on the shape of a batch, an answer therefore depends neither on the batch it was generated
in nor on the answers generated before it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blake3 import blake3
from numpy.typing import NDArray
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

from slipway.errors import SlipwayError
from slipway.evaluate.questions import Question
from slipway.evaluate.samples import Answer
from slipway.evaluate.sampling import Sampling, render, stream_seed, to_answer
from slipway.models.tokenizer import load_tokenizer

ENGINE = "transformers"


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to generate, and the digest of its weights."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    weights: str
    stop_tokens: tuple[int, ...]


def load_model(folder: Path) -> LoadedModel:
    """Load a Hugging Face folder in float32 on the CPU.

    Raises `SlipwayError` when the tokenizer cannot be loaded, or when the folder has no chat template or no
    end-of-sequence token.
    """
    tokenizer = chat_tokenizer(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    model.train(False)
    return LoadedModel(model, tokenizer, weights_digest(model), stop_tokens_of(model, tokenizer, folder))


def chat_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load a tokenizer that can render a chat; raises `SlipwayError` where it has no template."""
    tokenizer = load_tokenizer(folder, padding_side="left")
    if tokenizer.chat_template is None:
        raise SlipwayError(f"{folder}: the tokenizer has no chat template, so questions cannot be asked")
    return tokenizer


def stop_tokens_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> tuple[int, ...]:
    """Return the tokens that end an answer; raises `SlipwayError` where neither the model nor its tokenizer has one."""
    generation = model.generation_config
    stop = tokenizer.eos_token_id if generation is None or generation.eos_token_id is None else generation.eos_token_id
    if stop is None:
        raise SlipwayError(f"{folder}: neither generation_config.json nor the tokenizer names an eos token")
    return tuple(stop) if isinstance(stop, list) else (stop,)


def weights_digest(model: torch.nn.Module) -> str:
    """Return the BLAKE3 digest of all weights, rounded to bfloat16.

    So that equal weights have equal digests whatever their files: shards, precision of storage and tied
    weights stored once or twice make no difference.
    """
    digest = blake3()
    for name, tensor in sorted(model.state_dict().items()):
        rounded = tensor.detach().to(torch.bfloat16).contiguous()
        digest.update(f"{name} {tuple(rounded.shape)}\n".encode())
        digest.update(rounded.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


def generate(
    loaded: LoadedModel, requests: Iterable[tuple[Question, int]], sampling: Sampling
) -> Iterator[list[Answer]]:
    """Generate one answer for each request (a question and the number of the sample), batch by batch.

    Requests are sorted by the length of their prompts, longest first, so that batches need little padding and
    one that does not fit in memory fails at once.
    """
    prepared = [(*request, *render(loaded.tokenizer, _positions(loaded), request[0], sampling)) for request in requests]
    prepared.sort(key=lambda item: -len(item[3]))
    remaining = iter(prepared)
    while batch := list(islice(remaining, sampling.batch_size)):
        streams = np.stack([_uniforms(sampling, question, sample) for question, sample, _, _ in batch])
        responses = _generate_batch(loaded, [tokens for *_, tokens in batch], streams, sampling)
        yield [
            to_answer(loaded.tokenizer, loaded.stop_tokens, question, sample, prompt, response)
            for (question, sample, prompt, _), response in zip(batch, responses, strict=True)
        ]


class SeededDraw(LogitsProcessor):
    """Leave one possible token per row: the one that the row's next uniform number picks.

    Inverse transform sampling of the softmax of the scores, tokens in order of their ids. `uniforms` is an
    array `[rows, max_response_length]` in [0, 1).
    """

    def __init__(self, uniforms: NDArray[np.float64], prompt_length: int):
        self.uniforms = torch.from_numpy(uniforms)
        self.prompt_length = prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return scores `[rows, vocabulary]` that are 0 at the drawn token and -inf elsewhere."""
        cumulative = scores.double().softmax(dim=-1).cumsum(dim=-1)
        # scaled by the last value, which rounding can leave below 1
        target = self.uniforms[:, input_ids.shape[1] - self.prompt_length, None] * cumulative[:, -1:]
        drawn = torch.searchsorted(cumulative, target, right=True)
        return torch.full_like(scores, -torch.inf).scatter(1, drawn, 0.0)


def _positions(loaded: LoadedModel) -> int | None:
    return getattr(loaded.model.config, "max_position_embeddings", None)


def _uniforms(sampling: Sampling, question: Question, sample: int) -> NDArray[np.float64]:
    return np.random.default_rng(stream_seed(sampling, question, sample)).random(sampling.max_response_length)


@torch.inference_mode()
def _generate_batch(
    loaded: LoadedModel, prompts: Sequence[list[int]], uniforms: NDArray[np.float64], sampling: Sampling
) -> list[list[int]]:
    width = max(map(len, prompts))
    pad = loaded.stop_tokens[0]
    tokens = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    # The model's own generation_config (top_k, repetition penalty, ...) must not join in unseen.
    loaded.model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False,
        max_new_tokens=sampling.max_response_length,
        eos_token_id=list(loaded.stop_tokens),
        pad_token_id=pad,
    )
    generate_tokens: Any = loaded.model.generate  # transformers' own annotation is a tensor
    output = generate_tokens(tokens, attention_mask=mask, logits_processor=_processors(sampling, uniforms, width))
    return [_until_stop(row, loaded.stop_tokens) for row in output[:, width:].tolist()]


def _processors(sampling: Sampling, uniforms: NDArray[np.float64], width: int) -> LogitsProcessorList:
    processors = LogitsProcessorList()
    if sampling.temperature > 0:
        processors.append(TemperatureLogitsWarper(float(sampling.temperature)))
        if sampling.top_p < 1:
            processors.append(TopPLogitsWarper(float(sampling.top_p)))
        processors.append(SeededDraw(uniforms, width))
    return processors


def _until_stop(tokens: list[int], stop_tokens: tuple[int, ...]) -> list[int]:
    end = next((index for index, token in enumerate(tokens) if token in stop_tokens), len(tokens) - 1)
    return tokens[: end + 1]
