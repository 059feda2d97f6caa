"""Choosing tokens: sampling parameters, seeds, and a choice that depends on nothing but both and the logits."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from slipway.errors import SlipwayError


@dataclass(frozen=True)
class SamplingParams:
    """What verl's agent loops ask for, a subset of vLLM's sampling parameters."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int | None = None
    logprobs: bool = False
    ignore_eos: bool = False

    @classmethod
    def from_request(cls, request: Mapping[str, Any], *, max_tokens: int, ignore_eos: bool = False) -> "SamplingParams":
        """Read verl's dictionary; refuse what would change the result and is not implemented."""
        given = {key: value for key, value in request.items() if value is not None}
        given.pop("max_tokens", None)
        given.pop("max_new_tokens", None)
        if given.pop("repetition_penalty", 1.0) != 1.0:
            raise SlipwayError("the transformers rollout has no repetition_penalty other than 1.0")
        known = cls.__dataclass_fields__.keys()
        unknown = given.keys() - known
        if unknown:
            raise SlipwayError(f"the transformers rollout does not know the sampling parameters {sorted(unknown)}")
        given.setdefault("ignore_eos", ignore_eos)
        return cls(max_tokens=max_tokens, **given)


def digest(*identity: object) -> int:
    """Hash an identity to 128 bits, the same in every process (Python's own `hash` is salted)."""
    text = "\x1f".join(map(str, identity))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "big")


def uniforms(seed: int, count: int) -> npt.NDArray[np.float64]:
    """`count` numbers in [0, 1) for one sequence, one a token.

    From the raw stream of a counter-based generator, which numpy promises not to change.
    """
    raw = np.random.Philox(key=seed & ((1 << 128) - 1)).random_raw(count)
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53


def choose(
    logits: torch.Tensor, params: Sequence[SamplingParams], uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose one token a row; return tokens and log-probabilities under the distribution sampled from.

    A token is where its row's uniform number falls in the cumulative distribution. Every operation works on
    rows alone, so neighbours in the batch do not matter.
    """
    temperature = torch.tensor([p.temperature for p in params], dtype=torch.float64)
    greedy = temperature <= 0
    scores = logits.double() / torch.where(greedy, 1.0, temperature)[:, None]
    scores = _keep_top(scores, params)
    log_probs = scores.log_softmax(-1)
    cumulative = log_probs.exp().cumsum(-1)
    target = uniform.double()[:, None] * cumulative[:, -1:]
    sampled = torch.searchsorted(cumulative, target, right=True).clamp_(max=logits.shape[-1] - 1)
    tokens = torch.where(greedy[:, None], logits.argmax(-1, keepdim=True), sampled)
    return tokens[:, 0], log_probs.gather(-1, tokens)[:, 0]


def _keep_top(scores: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Apply top-k, then top-p, as vLLM does; rows that ask for neither are left alone."""
    vocabulary = scores.shape[-1]
    restricted = [i for i, p in enumerate(params) if 0 < p.top_k < vocabulary or p.top_p < 1.0]
    if not restricted:
        return scores
    scores = scores.clone()
    for i in restricted:
        ordered, order = scores[i].sort(descending=True, stable=True)
        top_k, top_p = params[i].top_k, params[i].top_p
        if 0 < top_k < vocabulary:
            ordered[top_k:] = -torch.inf
        if top_p < 1.0:
            probability = ordered.softmax(-1)
            before = probability.cumsum(-1) - probability
            ordered[before >= top_p] = -torch.inf  # the first token has nothing before it and always stays
        scores[i] = scores[i].scatter(0, order, ordered)
    return scores
