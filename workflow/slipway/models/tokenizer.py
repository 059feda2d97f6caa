"""The tokenizer of a model's folder."""

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from slipway.errors import SlipwayError


def load_tokenizer(folder: Path, **options: Any) -> PreTrainedTokenizerBase:
    """Load the tokenizer in `folder`, from its files alone; raises `SlipwayError` when they are missing or damaged."""
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, local_files_only=True, **options)
    except Exception as error:  # transformers raises what the library below happens to raise
        reason = next(iter(str(error).splitlines()), "")
        raise SlipwayError(
            f"{folder}: its tokenizer cannot be loaded ({type(error).__name__}: {reason}); fetch tokenizer.json and "
            "tokenizer_config.json again"
        ) from None
    if not tokenizer("1 + 1", add_special_tokens=False)["input_ids"]:
        # transformers 5 makes one without a vocabulary when only tokenizer_config.json is there
        raise SlipwayError(f"{folder}: its tokenizer has no vocabulary; fetch tokenizer.json again")
    return tokenizer
