"""Prompts that are too long, measured by the tokenizer and chat template of the model that will read them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from transformers import PreTrainedTokenizerBase

from slipway.data.rendering import Rendering
from slipway.data.token_counts import TokenCounter

# Of what a tokenizer may put before or after a text.
SPARE_TOKENS = 8
# Prompts rendered at a time, or fewer where much stands around the questions.
PROMPTS_AT_A_TIME = 4096
BYTES_AT_A_TIME = 16 * 2**20


class PromptLengths:
    """Measures prompts; only those that may be too long are rendered and counted. Threads may share it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, limit: int, rendering: Rendering):
        self._tokenizer = tokenizer
        self._counter = TokenCounter(tokenizer)
        self._limit = limit
        self._rendering = rendering
        self._around = len(self._render([""])[0].encode())
        self._at_a_time = min(PROMPTS_AT_A_TIME, 1 + BYTES_AT_A_TIME // (1 + self._around))

    def too_long(self, questions: pa.Array) -> Iterator[tuple[int, int]]:
        """Yield place in `questions` and tokens of each prompt of more than the limit."""
        # a token is at least a byte of ASCII text; other text may grow when it is normalised
        spare = self._limit - self._around - SPARE_TOKENS
        sure = pc.and_(pc.string_is_ascii(questions), pc.less_equal(pc.binary_length(questions), spare))
        doubtful = pc.indices_nonzero(pc.invert(sure))
        for start in range(0, len(doubtful), self._at_a_time):
            places = doubtful.slice(start, self._at_a_time)
            counts = self._counter.count(self._render(questions.take(places).to_pylist()))
            long = np.flatnonzero(counts > self._limit)
            yield from zip(places.to_numpy()[long].tolist(), counts[long].tolist(), strict=True)

    def _render(self, questions: list[str]) -> list[str]:
        rendered: Any = self._tokenizer.apply_chat_template(
            [self._rendering.messages(question) for question in questions], add_generation_prompt=True, tokenize=False
        )
        return list(rendered)
