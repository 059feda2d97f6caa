"""Counting tokens by pieces gives what the tokenizer gives for whole texts, on texts made to be hard."""

import json
import random
from itertools import pairwise

import pyarrow as pa
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from slipway.data import token_counts
from slipway.data.token_counts import TokenCounter, counts_by_pieces, cut

# visible and invisible, letters that compose when normalised or become ASCII (Kelvin sign), and pieces of added tokens
HARD = [
    *("a", "b", "K", "he", "The", "the", "'s", "'S", "'ll", "1", "23", "456", ".", "!?", "(", "{x}", "\\frac", "é"),
    *(
        " ",
        " ",
        " ",
        " ",
        "  ",
        "   ",
        "\n",
        "\n\n",
        "\r\n",
        "\t",
        "\x01",
        "\x85",
        "\xa0",
        "\u2003",
        "\u2028",
        "\u200b",
    ),
    *("e\u0301", "\u0301", "\u212a", "ſ", "\u037e", "数学", "ゟ", "🙂", "½", "٣"),
    *("<|end|>", "<sp>", "<to the left>", "<right>", "<word>", "to the left", "Kept together"),
]
SPECIAL = [
    AddedToken("<|end|>", special=True, normalized=False),
    AddedToken("<sp>", lstrip=True, normalized=True),
    AddedToken("<word>", single_word=True, normalized=False),
]
WIDE = [
    AddedToken("<to the left>", lstrip=True, normalized=False),
    AddedToken("<right>", rstrip=True, normalized=False),
    AddedToken("Kept together", normalized=True),
]


def texts(count: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    return ["", " ", "a b", *("".join(chance.choices(HARD, k=chance.randint(1, 40))) for _ in range(count))]


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def steps(pattern: str) -> list[pre_tokenizers.PreTokenizer]:
    """Return a whole pre-tokenizer for an expression; that of DeepSeek-V3 has two before it."""
    before = [split(other) for other in sorted(token_counts._WITHIN_WORDS)] if r"\p{P}\p{S}" in pattern else []
    return [*before, split(pattern), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]


def trained(steps: list[pre_tokenizers.PreTokenizer], added: list[AddedToken]) -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE())
    core.normalizer = normalizers.NFC()
    core.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(texts(500, 7), trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet))
    core.add_tokens(added)
    return PreTrainedTokenizerFast(tokenizer_object=core)


@pytest.mark.parametrize("added", [SPECIAL, SPECIAL + WIDE], ids=["narrow", "wide"])
@pytest.mark.parametrize("pattern", [*sorted(token_counts._BY_WORDS), None])
def test_pieces_have_as_many_tokens_as_whole_texts(pattern: str | None, added: list[AddedToken]) -> None:
    own = [pre_tokenizers.ByteLevel(add_prefix_space=False)]  # GPT-2's form
    tokenizer = trained(own if pattern is None else steps(pattern), added)
    assert counts_by_pieces(json.loads(tokenizer.backend_tokenizer.to_str()))
    hard = texts(1500, 1)
    whole = [len(ids) for ids in tokenizer(hard, add_special_tokens=False)["input_ids"]]
    counter = TokenCounter(tokenizer)
    assert counter.count(hard).tolist() == whole
    # what is remembered serves other texts
    assert counter.count(hard[::-3]).tolist() == whole[::-3]


@pytest.mark.parametrize("individual", [True, False])
@pytest.mark.parametrize("normal", [[], [normalizers.NFC()]], ids=["as it is", "NFC"])
def test_digits_that_are_cut_off_first_change_nothing(normal: list, individual: bool) -> None:
    """SmolLM2's steps: digits, then GPT-2's expression."""
    digits = pre_tokenizers.Digits(individual_digits=individual)
    tokenizer = trained([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)], SPECIAL)
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(normal)
    assert counts_by_pieces(json.loads(tokenizer.backend_tokenizer.to_str()))
    hard = texts(1500, 4)
    whole = [len(ids) for ids in tokenizer(hard, add_special_tokens=False)["input_ids"]]
    assert TokenCounter(tokenizer).count(hard).tolist() == whole


def test_most_texts_are_counted_by_pieces_that_recur() -> None:
    tokenizer = trained(steps(sorted(token_counts._BY_WORDS)[0]), SPECIAL)
    counter = TokenCounter(tokenizer)
    encoded: list[str] = []
    whole = counter._count_whole
    counter._count_whole = lambda pieces: encoded.extend(pieces) or whole(pieces)  # type: ignore[method-assign]
    counter.count(["one two three one two"] * 100)
    assert sorted(encoded) == [" one", " three", " two", "one"]


@pytest.mark.parametrize(
    "tokenizer",
    [
        [pre_tokenizers.ByteLevel(add_prefix_space=True)],
        [pre_tokenizers.Metaspace()],
        [split(r"\p{N}"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)],
        [split(r"\w+ \w+|\s+"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)],
    ],
    ids=["space before", "metaspace", "numbers alone", "two words"],
)
def test_other_tokenizers_count_whole_texts(tokenizer: list[pre_tokenizers.PreTokenizer]) -> None:
    made = trained(tokenizer, SPECIAL)
    assert not counts_by_pieces(json.loads(made.backend_tokenizer.to_str()))
    hard = texts(300, 2)
    assert TokenCounter(made).count(hard).tolist() == [
        len(ids) for ids in made(hard, add_special_tokens=False)["input_ids"]
    ]


def test_cuttings_make_up_the_texts() -> None:
    hard = texts(500, 3)
    for column in (pa.array(hard), pa.array(["dropped", *hard, "dropped"]).slice(1, len(hard))):
        pieces, starts = cut(column)
        found = pieces.to_pylist()
        assert ["".join(found[start:stop]) for start, stop in pairwise(starts)] == hard
    assert cut(pa.array(["a b  c d. (e", "", "f"]))[0].to_pylist() == ["a", " b  c", " d.", " (e", "f"]
    assert cut(pa.array([], pa.string()))[1].tolist() == [0]
    assert cut(pa.array(["", ""]))[1].tolist() == [0, 0, 0]
