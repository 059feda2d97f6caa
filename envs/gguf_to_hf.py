"""Turn a GGUF file with a chat model into a Hugging Face folder in bfloat16, which `models.<name>.path` can name.

Needs the package `gguf`. GGUF files often declare no padding token, or a wrong end-of-sequence token: the answer then
never ends. The token that ends a turn is given here, and stands for both.
"""

import argparse
from pathlib import Path

from slipway.cli import run
from slipway.errors import SlipwayError


def main() -> None:
    """Read the command line and convert."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path, help="the GGUF file")
    parser.add_argument("folder", type=Path, help="folder to write")
    parser.add_argument("--end", default="<|im_end|>", help="token that ends a turn (%(default)s)")
    arguments = parser.parse_args()
    if not arguments.gguf.is_file():
        raise SlipwayError(f"{arguments.gguf}: no such file")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    source = {"pretrained_model_name_or_path": arguments.gguf.parent, "gguf_file": arguments.gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    if arguments.end not in tokenizer.get_vocab():
        raise SlipwayError(f"--end {arguments.end}: the tokenizer of {arguments.gguf} has no such token")
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
    tokenizer.eos_token = tokenizer.pad_token = arguments.end
    end = tokenizer.convert_tokens_to_ids(arguments.end)
    model.config.eos_token_id = model.config.pad_token_id = end
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=model.config.bos_token_id, eos_token_id=end, pad_token_id=end
    )
    model.save_pretrained(arguments.folder)
    tokenizer.save_pretrained(arguments.folder)


if __name__ == "__main__":
    run(main)
