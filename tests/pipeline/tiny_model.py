"""A tiny Qwen2 with a tokenizer, and prompts for it: enough for verl, made in a second."""

import random
from pathlib import Path

VOCABULARY = 384


def make_model(folder: Path, *, layers: int = 2, hidden: int = 64) -> Path:
    """Write a randomly initialised model and its tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [f"What is {a}+{b}? The answer is {a + b}." for a in range(30) for b in range(30)]
    tokenizer.train_from_iterator([*texts, *["system user assistant\n"] * 50], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", bos_token=None
    )
    fast.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).to(torch.float32).save_pretrained(folder)
    return folder


def make_prompts(path: Path, rows: int, seed: int = 0) -> Path:
    """Write additions as a parquet file that verl reads."""
    import pandas as pd

    choose = random.Random(seed)
    terms = [(choose.randint(0, 9), choose.randint(0, 9)) for _ in range(rows)]
    pd.DataFrame(
        {
            "data_source": "tiny/add",
            "prompt": [[{"role": "user", "content": f"What is {a}+{b}?"}] for a, b in terms],
            "ability": "math",
            "reward_model": [{"style": "rule", "ground_truth": str(a + b)} for a, b in terms],
            "extra_info": [{"index": index} for index in range(rows)],
        }
    ).to_parquet(path)
    return path


REWARD = '''
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    """Share of digits, and one for the right answer: dense enough to give every group an advantage."""
    digits = sum(c.isdigit() for c in solution_str) / max(1, len(solution_str))
    return digits + float(solution_str.strip() == ground_truth)
'''
