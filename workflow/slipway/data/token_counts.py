"""Tokens of many texts, as the tokenizer itself would count them, at a fraction of its time.

Most time of a byte-level tokenizer goes into splitting texts by a regular expression. The expressions below always
begin a new piece at a single space between two visible ASCII characters, whatever else the text holds, and what is
made of a piece depends on no other piece. So texts are cut there, and each distinct cutting, of which there are few,
is counted once, by the tokenizer. Texts of other tokenizers are counted whole.
"""

import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from slipway.data.text_buffers import text_buffers

Counts = NDArray[np.int64]

# Whose pieces hold a space only as the first character, or in a run of nothing but white space, which is matched to
# its end; they look ahead only from such a run, and back never.
_BY_WORDS = frozenset(
    {
        # GPT-2
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        # Llama 3, GLM-4
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
        # Qwen2, Qwen2.5, Qwen3
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
        # Qwen3.5
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
        # DeepSeek-V3, after the two below
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    }
)
# Whose pieces hold no white space: they only cut further.
_WITHIN_WORDS = frozenset({r"\p{N}", r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+"})

# Texts of a call of the tokenizer, which holds the tokens of all; pieces whose counts are remembered.
AT_A_TIME = 512
REMEMBERED = 200_000
_SPACE, _FIRST_VISIBLE, _LAST_VISIBLE = 0x20, 0x21, 0x7E


class TokenCounter:
    """Counts tokens of texts, without those that a tokenizer adds to a text; threads may share it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._tokenizer = tokenizer
        self._backend: Any = tokenizer.backend_tokenizer if tokenizer.is_fast else None
        self._by_pieces = False
        self._wide: list[str] = []
        self._known: dict[str, int] = {}
        self._slow = threading.Lock()
        if self._backend is not None:
            # a tokenizer's file may ask for them, and a cut or filled-up text has no length of its own
            self._backend.no_truncation()
            self._backend.no_padding()
            state = json.loads(self._backend.to_str())
            self._by_pieces = counts_by_pieces(state)
            # that may reach over a cut
            self._wide = [
                token["content"] for token in state["added_tokens"] if token["rstrip"] or " " in token["content"]
            ]

    def count(self, texts: Sequence[str]) -> Counts:
        """Return the tokens of each text, [texts]."""
        counts = np.zeros(len(texts), dtype=np.int64)
        column = pa.array(texts, pa.string())
        whole = self._counted_whole(column)
        counts[whole] = self._count_whole([texts[place] for place in np.flatnonzero(whole).tolist()])
        if not whole.all():
            counts[~whole] = self._count_by_pieces(column.filter(pa.array(~whole)))
        return counts

    def _counted_whole(self, texts: pa.Array) -> NDArray[np.bool_]:
        if not self._by_pieces:
            return np.ones(len(texts), dtype=np.bool_)
        if not self._wide:
            return np.zeros(len(texts), dtype=np.bool_)
        # in other than ASCII a token may only come about when the text is normalised
        found = pc.invert(pc.string_is_ascii(texts))
        for content in self._wide:
            found = pc.or_(found, pc.match_substring(texts, content))
        whole: NDArray[np.bool_] = found.to_numpy(zero_copy_only=False)
        return whole

    def _count_by_pieces(self, texts: pa.Array) -> Counts:
        pieces, starts = cut(texts)
        coded = pieces.dictionary_encode()
        distinct = coded.dictionary.to_pylist()
        known = self._known
        new = [piece for piece in distinct if piece not in known]
        known.update(zip(new, self._count_whole(new), strict=True))
        of_distinct = np.array([known[piece] for piece in distinct], dtype=np.int64)
        if len(known) > REMEMBERED:
            # another thread goes on with the old ones
            self._known = {}
        of_pieces = of_distinct[coded.indices.to_numpy(zero_copy_only=False)]
        return np.diff(np.concatenate([[0], np.cumsum(of_pieces)])[starts])

    def _count_whole(self, texts: list[str]) -> list[int]:
        if self._backend is None:
            with self._slow:  # such a tokenizer is Python's, and of any make
                return [len(ids) for part in _parts(texts) for ids in self._ids(part)]
        # without the lists of ids and the offsets that the tokenizer's own call makes: only the length is wanted
        encode = self._backend.encode_batch_fast
        return [len(one) for part in _parts(texts) for one in encode(part, add_special_tokens=False)]

    def _ids(self, texts: list[str]) -> Any:
        return self._tokenizer(texts, add_special_tokens=False)["input_ids"]


def counts_by_pieces(state: dict[str, Any]) -> bool:
    """Tell whether a tokenizer (its tokenizer.json) makes of a text what it makes of its cuttings, one by one."""
    model, normalizer = state["model"], state["normalizer"]
    if model.get("type") != "BPE" or model.get("dropout"):
        return False
    # composes no character across a cut, which has ASCII on both sides
    if any(step["type"] != "NFC" for step in _steps(normalizer, "normalizers")):
        return False
    by_words = False
    for step in _steps(state["pre_tokenizer"], "pretokenizers"):
        if step["type"] == "ByteLevel":
            if step["add_prefix_space"]:
                return False
            by_words |= step.get("use_regex", True)
        elif step["type"] == "Split":
            pattern = step["pattern"].get("Regex")
            if step["behavior"] != "Isolated" or step["invert"] or pattern not in _BY_WORDS | _WITHIN_WORDS:
                return False
            by_words |= pattern in _BY_WORDS
        elif step["type"] != "Digits":  # which cut further, as in SmolLM2
            return False
    return by_words


def _steps(described: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    """Return the steps of a normalizer or pre-tokenizer, which may be a sequence of them, or none."""
    if described is None:
        return []
    return described[inner] if described["type"] == "Sequence" else [described]


def cut(texts: pa.Array) -> tuple[pa.Array, NDArray[np.int64]]:
    """Return the cuttings of all texts, one after the other, and where each text's begin, [texts + 1].

    A text is cut before each space that stands between two visible ASCII characters.
    """
    offsets, letters = text_buffers(texts)
    if not offsets[-1]:
        return texts.slice(0, 0), np.zeros(len(texts) + 1, dtype=np.int64)
    letter = np.frombuffer(letters, dtype=np.uint8)[: offsets[-1]]
    visible = (letter >= _FIRST_VISIBLE) & (letter <= _LAST_VISIBLE)
    begins = np.zeros(len(letter) + 1, dtype=np.bool_)
    begins[1 : len(letter) - 1] = (letter[1:-1] == _SPACE) & visible[:-2] & visible[2:]
    begins[offsets] = True
    bounds = np.flatnonzero(begins)
    pieces = pa.StringArray.from_buffers(len(bounds) - 1, pa.py_buffer(bounds.astype(np.int32)), letters)
    return pieces, np.searchsorted(bounds, offsets)


def _parts(texts: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(texts), AT_A_TIME):
        yield texts[start : start + AT_A_TIME]
