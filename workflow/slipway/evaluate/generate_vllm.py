"""Generation with vLLM on a GPU.

Every answer has its own seed, by (seed, question, sample). vLLM batches as it likes, and sums in bfloat16 depend on
the batch, so that an answer can differ in its words between two runs; its distribution does not.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from slipway.config.kernels import FLASHINFER_KERNELS
from slipway.evaluate.generate_transformers import chat_tokenizer, stop_tokens_of, weights_digest
from slipway.evaluate.questions import Question
from slipway.evaluate.samples import Answer
from slipway.evaluate.sampling import Sampling, render, stream_seed, to_answer
from slipway.surroundings import is_installed

ENGINE = "vllm"
# Answers that are given to vLLM together, and kept together: enough to fill a GPU, few enough to lose little.
TOGETHER = 2048
# vLLM reserves memory for its longest sequence; no more than this, however many positions a model has.
LONGEST = 32_768
MEMORY_SHARE = 0.8


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to generate, and the digest of its weights."""

    engine: Any
    tokenizer: PreTrainedTokenizerBase
    weights: str
    stop_tokens: tuple[int, ...]
    positions: int


def load_model(folder: Path) -> LoadedModel:
    """Load a Hugging Face folder in bfloat16 on the GPU; raises `SlipwayError` as that of transformers does."""
    tokenizer = chat_tokenizer(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.bfloat16)
    weights, stop_tokens = weights_digest(model), stop_tokens_of(model, tokenizer, folder)
    positions = min(getattr(model.config, "max_position_embeddings", None) or LONGEST, LONGEST)
    del model
    if is_installed("flashinfer") and not any(map(is_installed, FLASHINFER_KERNELS)):
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    # torch has looked at the GPU in this process: a forked one could not use it
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    from vllm import LLM  # reads its environment when it is imported

    engine = LLM(
        model=str(folder),
        dtype="bfloat16",
        max_model_len=positions,
        gpu_memory_utilization=MEMORY_SHARE,
        # compiling and recording graphs take longer than an evaluation's few thousand answers gain by them
        enforce_eager=True,
        # the model's own generation_config (top_k, repetition penalty, ...) must not join in unseen
        generation_config="vllm",
    )
    return LoadedModel(engine, tokenizer, weights, stop_tokens, positions)


def generate(
    loaded: LoadedModel, requests: Iterable[tuple[Question, int]], sampling: Sampling
) -> Iterator[list[Answer]]:
    """Generate one answer for each request (a question and the number of the sample), some thousand at a time."""
    from vllm import SamplingParams

    remaining = iter(requests)
    while batch := list(islice(remaining, TOGETHER)):
        prompts = [render(loaded.tokenizer, loaded.positions, question, sampling) for question, _ in batch]
        parameters = [
            SamplingParams(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=sampling.max_response_length,
                seed=stream_seed(sampling, question, sample) % 2**63,
                stop_token_ids=list(loaded.stop_tokens),
                detokenize=False,
            )
            for question, sample in batch
        ]
        outputs = loaded.engine.generate(
            [{"prompt_token_ids": tokens} for _, tokens in prompts], parameters, use_tqdm=False
        )
        yield [
            to_answer(loaded.tokenizer, loaded.stop_tokens, question, sample, prompt, list(output.outputs[0].token_ids))
            for (question, sample), (prompt, _), output in zip(batch, prompts, outputs, strict=True)
        ]
