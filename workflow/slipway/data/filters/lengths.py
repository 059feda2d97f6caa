"""Prompts that are too long, measured by the tokenizer and chat template of the model that will read them."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from transformers import PreTrainedTokenizerBase

from slipway.data.rendering import Message, Rendering
from slipway.data.side_by_side import in_order

# Of what a tokenizer may put before or after a text.
SPARE_TOKENS = 8
AT_A_TIME = 512


class PromptLengths:
    """Measures prompts; only those that may be too long are given to the tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, limit: int, rendering: Rendering):
        self._tokenizer = tokenizer
        if tokenizer.is_fast:
            # a tokenizer's file may ask for them, and a cut or filled-up prompt has no length of its own
            tokenizer.backend_tokenizer.no_truncation()
            tokenizer.backend_tokenizer.no_padding()
        self._limit = limit
        self._rendering = rendering
        self._around = len(self._render(rendering.messages("")).encode())

    def too_long(self, questions: pa.Array) -> Iterator[tuple[int, int]]:
        """Yield place in `questions` and tokens of each prompt of more than the limit."""
        # a token is at least a byte of ASCII text; other text may grow when it is normalised
        spare = self._limit - self._around - SPARE_TOKENS
        sure = pc.and_(pc.string_is_ascii(questions), pc.less_equal(pc.binary_length(questions), spare))
        doubtful = pc.indices_nonzero(pc.invert(sure))
        prompts = (
            [self._render(self._rendering.messages(question)) for question in part.to_pylist()]
            for part in _parts(questions.take(doubtful))
        )
        # the next ones are rendered while these are counted
        counted = chain.from_iterable(in_order(self._count, prompts, 1))
        for place, tokens in zip(doubtful.to_pylist(), counted, strict=True):
            if tokens > self._limit:
                yield place, tokens

    def _render(self, messages: list[Message]) -> str:
        rendered: Any = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return str(rendered)

    def _count(self, texts: list[str]) -> list[int]:
        if self._tokenizer.is_fast:
            # without the lists of ids and the offsets that the tokenizer's own call makes: only the length is wanted
            backend: Any = self._tokenizer.backend_tokenizer
            return list(map(len, backend.encode_batch_fast(texts, add_special_tokens=False)))
        ids: Any = self._tokenizer(texts, add_special_tokens=False)["input_ids"]
        return list(map(len, ids))


def _parts(texts: pa.Array) -> Iterator[pa.Array]:
    for start in range(0, len(texts), AT_A_TIME):
        yield texts.slice(start, AT_A_TIME)
