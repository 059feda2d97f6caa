"""The demo model's own tokenizer: Qwen2's byte-level BPE, trained on the task, one token a digit, a chat template."""

import os
from pathlib import Path

from tokenizers import AddedToken
from transformers import Qwen2Tokenizer

from slipway.models.demo_dimensions import DEMO_VOCAB_SIZE

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

ANSWER_TAGS = ("<answer>", "</answer>")

# Qwen2's own form of a dialogue: verl looks for its tokens in every model of that architecture. Generation stops at
# END.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "" + START + "{{ message['role'] }}\n{{ message['content'] }}" + END + "\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}" + START + "assistant\n{% endif %}"
)
ROLES = ("system", "user", "assistant")


def train_tokenizer(prompts: list[str], answers: list[str]) -> Qwen2Tokenizer:
    """Train a tokenizer on texts of the task; every byte has a token, so that any text can be written.

    Of Qwen2's class, because transformers 5 reads the tokenizer of any Qwen2 model as that class and puts its way of
    splitting text in the place of the saved one. The text that all prompts begin with is a single token: a third
    of the tokens, and the time, that it would take otherwise.
    """
    own = [*ANSWER_TAGS, *ROLES]
    # digits stay with the numbers they begin
    shared = os.path.commonprefix(prompts).rstrip("0123456789") if len(prompts) > 1 else ""  # noqa: RUF071
    if shared.strip():
        own.append(shared)
    untrained = Qwen2Tokenizer(unk_token=None, eos_token=END, pad_token=PAD)  # type: ignore[arg-type]
    tokenizer = untrained.train_new_from_iterator(
        [*prompts, *answers],
        vocab_size=DEMO_VOCAB_SIZE - len(own),
        new_special_tokens=[PAD, START, END],
        show_progress=False,
    )
    # not special: decoding leaves special tokens out, and the scorer looks for the tags
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in own])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def save_tokenizer(tokenizer: Qwen2Tokenizer, folder: Path) -> None:
    """Write the tokenizer's files to `folder`."""
    tokenizer.save_pretrained(folder)
