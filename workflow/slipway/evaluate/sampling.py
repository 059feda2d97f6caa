"""What every way of generating answers shares: settings, rendered prompts, and a random stream for each answer."""

from dataclasses import dataclass

from blake3 import blake3
from transformers import PreTrainedTokenizerBase

from slipway.errors import SlipwayError
from slipway.evaluate.questions import Question
from slipway.evaluate.samples import Answer


@dataclass(frozen=True)
class Sampling:
    """How to generate; lengths in tokens, `temperature` 0 is greedy."""

    temperature: float
    top_p: float
    max_response_length: int
    batch_size: int
    seed: int


def render(
    tokenizer: PreTrainedTokenizerBase, positions: int | None, question: Question, sampling: Sampling
) -> tuple[str, list[int]]:
    """Return the prompt of a question as text and as tokens; `positions` are those that the model has."""
    prompt = str(tokenizer.apply_chat_template(question.messages, add_generation_prompt=True, tokenize=False))
    tokens = tokenizer.encode(prompt, add_special_tokens=False)
    if positions is not None and len(tokens) + sampling.max_response_length > positions:
        raise SlipwayError(
            f"question {question.question_id}: {len(tokens)} prompt tokens and max_response_length "
            f"{sampling.max_response_length} exceed the model's {positions} positions; lower max_response_length"
        )
    return prompt, tokens


def stream_seed(sampling: Sampling, question: Question, sample: int) -> int:
    """Return the seed, 128 bits, of the random stream of one answer: it depends on no other answer."""
    identity = f"{sampling.seed}/{question.question_id}/{sample}".encode()
    return int.from_bytes(blake3(identity).digest()[:16], "little")


def to_answer(
    tokenizer: PreTrainedTokenizerBase,
    stop_tokens: tuple[int, ...],
    question: Question,
    sample: int,
    prompt: str,
    tokens: list[int],
) -> Answer:
    """Return what was generated as an answer; `tokens` end with a stop token, or were cut at the length."""
    return Answer(
        question_id=question.question_id,
        sample=sample,
        prompt=prompt,
        response=str(tokenizer.decode(tokens, skip_special_tokens=True)),
        response_tokens=len(tokens),
        stop="eos" if tokens[-1] in stop_tokens else "length",
    )
