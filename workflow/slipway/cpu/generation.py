"""Batched generation with a transformers model, where a result depends on its own request alone.

Floating-point results of a matrix product depend on its shape: the same row, in a batch of another size or with
other padding, may differ in the last bit, and one such bit can flip a sampled token. So the shapes are a
function of the request, never of what else is waiting: prompts are padded on the left to the next power of two,
batches always have `rows` rows, prefills always have `prefill_rows`, missing rows are filled up, and a batch
holds prompts of one padded length.

The samples of one prompt share its prefill.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache, PreTrainedModel

from slipway.cpu.sampling import SamplingParams, choose, uniforms

SHORTEST_PADDED_PROMPT = 16


@dataclass(frozen=True)
class Request:
    """One sequence to generate."""

    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int

    @property
    def padded_length(self) -> int:
        """Length to which the prompt is padded."""
        return max(SHORTEST_PADDED_PROMPT, 1 << (len(self.prompt) - 1).bit_length())


@dataclass(frozen=True)
class Completion:
    """The tokens generated for one request, end-of-sequence included, and their log-probabilities."""

    tokens: list[int]
    log_probs: list[float]


def batches(requests: Sequence[Request], rows: int) -> Iterator[list[int]]:
    """Split requests, by index, into batches of one padded length; samples of one prompt stay neighbours."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for index, request in enumerate(requests):
        by_length[request.padded_length].append(index)
    for _, indices in sorted(by_length.items()):
        indices.sort(key=lambda index: (requests[index].prompt, requests[index].seed))
        for start in range(0, len(indices), rows):
            yield indices[start : start + rows]


class Generator:
    """Generates for one model; `rows` sequences at a time."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        end_of_sequence: Collection[int],
        pad: int,
        rows: int = 64,
        prefill_rows: int = 8,
    ) -> None:
        self._model = model.train(False)
        self._end = frozenset(end_of_sequence)
        self._pad = pad
        self.rows = rows
        self._prefill_rows = prefill_rows

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Generate for at most `rows` requests of one padded length (see `batches`)."""
        if not requests or len(requests) > self.rows or len({r.padded_length for r in requests}) > 1:
            raise ValueError("a batch is 1 to `rows` requests of one padded length")
        filled = [*requests, *[requests[0]] * (self.rows - len(requests))]
        params = [request.params for request in filled]
        steps = max(p.max_tokens for p in params)
        random = torch.zeros(self.rows, steps, dtype=torch.float64)
        for row, request in enumerate(requests):  # a filled-up row needs no randomness of its own
            random[row, : request.params.max_tokens] = torch.from_numpy(
                uniforms(request.seed, request.params.max_tokens)
            )

        logits, cache, mask = self._prefill(filled)
        position = mask.sum(-1, keepdim=True)
        completions = [Completion([], []) for _ in requests]
        unfinished = set(range(len(requests)))
        for step in range(steps):
            tokens, log_probs = choose(logits, params, random[:, step])
            self._append(requests, completions, unfinished, tokens.tolist(), log_probs.tolist())
            if not unfinished:
                break
            mask = torch.cat([mask, mask.new_ones(self.rows, 1)], dim=1)
            logits = self._forward(tokens[:, None], mask, position + step, cache)
        return completions

    def _append(
        self,
        requests: Sequence[Request],
        completions: Sequence[Completion],
        unfinished: set[int],
        tokens: Sequence[int],
        log_probs: Sequence[float],
    ) -> None:
        for row in sorted(unfinished):
            completion, params = completions[row], requests[row].params
            completion.tokens.append(tokens[row])
            completion.log_probs.append(log_probs[row])
            ended = tokens[row] in self._end and not params.ignore_eos
            if ended or len(completion.tokens) >= params.max_tokens:
                unfinished.discard(row)

    def _prefill(self, requests: Sequence[Request]) -> tuple[torch.Tensor, DynamicCache, torch.Tensor]:
        """Run each distinct prompt once; return last logits, key-value cache and mask, a row for each request."""
        prompts = list(dict.fromkeys(request.prompt for request in requests))
        length = requests[0].padded_length
        parts = [
            self._prefill_part(prompts[start : start + self._prefill_rows], length)
            for start in range(0, len(prompts), self._prefill_rows)
        ]
        row_of = {prompt: row for row, prompt in enumerate(prompts)}
        rows = torch.tensor([row_of[request.prompt] for request in requests])

        cache = DynamicCache()
        for layer, layers in enumerate(zip(*(part[1].layers for part in parts), strict=True)):
            keys = torch.cat([part.keys for part in layers])
            values = torch.cat([part.values for part in layers])
            cache.update(keys[rows], values[rows], layer)
        logits = torch.cat([part[0] for part in parts])
        mask = torch.cat([part[2] for part in parts])
        return logits[rows], cache, mask[rows]

    def _prefill_part(
        self, prompts: Sequence[tuple[int, ...]], length: int
    ) -> tuple[torch.Tensor, DynamicCache, torch.Tensor]:
        ids = torch.full((self._prefill_rows, length), self._pad)
        mask = torch.zeros(self._prefill_rows, length, dtype=torch.long)
        for row in range(self._prefill_rows):
            prompt = prompts[min(row, len(prompts) - 1)]
            ids[row, length - len(prompt) :] = torch.tensor(prompt)
            mask[row, length - len(prompt) :] = 1
        cache = DynamicCache()
        logits = self._forward(ids, mask, (mask.cumsum(-1) - 1).clamp(min=0), cache)
        return logits, cache, mask

    def _forward(
        self, ids: torch.Tensor, mask: torch.Tensor, position: torch.Tensor, cache: DynamicCache
    ) -> torch.Tensor:
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=position,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits
