"""The rollout server: one model, its weights, and the queue in front of it. A Ray actor (see `rollout`)."""

import asyncio
import copy
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.tokenizer import normalize_token_ids
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import TokenOutput

from slipway.cpu.generation import Completion, Generator, Request, batches
from slipway.cpu.sampling import SamplingParams, digest
from slipway.errors import SlipwayError

logger = logging.getLogger(__name__)

COLLECT_SECONDS = 0.2
"""Requests of one step arrive one by one; wait for another one this long before starting a batch."""


class WeightLoader:
    """Takes one synchronisation of weights in parts, and refuses one that is not exactly the model's.

    Weights have the names of the model's files, in which experts are apart; transformers computes with those of a
    layer in one tensor, and a weight is copied into its part of that.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        # Tied weights are one parameter under the first of their names.
        first = {name for name, _ in model.named_parameters()}
        self._tied = {name for name, _ in model.named_parameters(remove_duplicate=False)} - first
        # With buffers: a router's bias is one.
        whole = {name: weight for name, weight in model.state_dict().items() if name not in self._tied}
        self._weights: dict[str, torch.Tensor] = revert_weight_conversion(model, whole)
        memory = {weight.untyped_storage().data_ptr() for weight in whole.values()}
        copies = [name for name, weight in self._weights.items() if weight.untyped_storage().data_ptr() not in memory]
        if copies:
            raise SlipwayError(
                f"weight synchronisation: a {type(model).__name__} cannot take its weights one by one: transformers "
                f"computes with others than its files have, such as {copies[0]}"
            )
        self._received: set[str] = set()

    @torch.no_grad()
    def load(self, weights: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Copy a part of the weights into the model."""
        for name, weight in weights:
            if name in self._tied:
                continue
            own = self._weights.get(name)
            if own is None:
                raise SlipwayError(f"weight synchronisation: the rollout's model has no weight {name!r}")
            if own.shape != weight.shape:
                raise SlipwayError(
                    f"weight synchronisation: {name} has shape {tuple(weight.shape)}, the rollout's model wants "
                    f"{tuple(own.shape)}"
                )
            own.copy_(weight)
            self._received.add(name)

    def finish(self) -> None:
        """End this synchronisation; every weight must have come."""
        missing = sorted(self._weights.keys() - self._received)
        self._received.clear()
        if missing:
            raise SlipwayError(
                f"weight synchronisation: {len(missing)} of {len(self._weights)} weights never came, "
                f"first {missing[:3]}"
            )


class TransformersServer:
    """Answers verl's generation requests in batches, and takes the trainer's weights."""

    def __init__(self, config: Any, model_config: Any, replica_rank: int) -> None:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        self._config: RolloutConfig = omega_conf_to_dataclass(config)
        model_config = omega_conf_to_dataclass(model_config, dataclass_type=HFModelConfig)
        self._replica_rank = replica_rank
        model = _empty_model(model_config, self._config.dtype)
        self._weights = WeightLoader(model)
        self._generator = Generator(
            model,
            end_of_sequence=_end_of_sequence(model_config),
            pad=model_config.tokenizer.pad_token_id or 0,
            **self._config.engine_kwargs.get("transformers", {}),
        )
        self._global_steps: int | None = None
        self._unseeded: Counter[tuple[int, ...]] = Counter()
        self._queue: asyncio.Queue[tuple[Request, asyncio.Future[TokenOutput]]] = asyncio.Queue()
        self._worker: asyncio.Task[None] | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def generate(
        self,
        request_id: str,
        prompt_ids: Any,
        sampling_params: Mapping[str, Any],
        image_data: object = None,
        video_data: object = None,
        **_kwargs: object,
    ) -> TokenOutput:
        """Generate one sequence."""
        if image_data or video_data:
            raise SlipwayError("the transformers rollout takes text only")
        await self._open.wait()
        prompt = tuple(normalize_token_ids(prompt_ids))
        params = SamplingParams.from_request(
            sampling_params,
            max_tokens=self._max_tokens(prompt, sampling_params),
            ignore_eos=self._config.ignore_eos,
        )
        request = Request(prompt, params, self._seed(prompt, params))
        done: asyncio.Future[TokenOutput] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((request, done))
        if self._worker is None:
            self._worker = asyncio.create_task(self._serve())
        return await done

    def _max_tokens(self, prompt: Sequence[int], request: Mapping[str, Any]) -> int:
        """Follow verl's vLLM server: the request's limit, else the configured one, within the context."""
        config = self._config
        room = (config.max_model_len or config.prompt_length + config.response_length) - len(prompt)
        if room < 1:
            raise SlipwayError(
                f"a prompt of {len(prompt)} tokens leaves no room to generate: "
                f"actor_rollout_ref.rollout.max_model_len is {config.max_model_len}"
            )
        asked = request.get("max_tokens") or request.get("max_new_tokens")
        return max(1, min(int(asked or config.response_length), room))

    def _seed(self, prompt: tuple[int, ...], params: SamplingParams) -> int:
        if params.seed is not None:
            return digest(params.seed, prompt)
        # Another agent loop than ours: number the requests for one prompt within one step. The samples of a
        # prompt are then the same in every run, though not always in the same order.
        self._unseeded[prompt] += 1
        return digest(self._config.seed, self._global_steps, self._unseeded[prompt], prompt)

    async def _serve(self) -> None:
        """Answer the queue for ever, in batches as large as what is waiting allows."""
        while True:
            waiting = [await self._queue.get()]
            self._idle.clear()
            while len(waiting) < self._generator.rows or not self._queue.empty():
                try:
                    waiting.append(await asyncio.wait_for(self._queue.get(), COLLECT_SECONDS))
                except TimeoutError:
                    break
            requests = [request for request, _ in waiting]
            for indices in batches(requests, self._generator.rows):
                await self._answer([waiting[index] for index in indices])
            if self._queue.empty():
                self._idle.set()

    async def _answer(self, batch: Sequence[tuple[Request, "asyncio.Future[TokenOutput]"]]) -> None:
        requests = [request for request, _ in batch]
        try:
            completions = await asyncio.to_thread(self._generator.generate, requests)
        except Exception as error:  # of any kind: it belongs to those who wait for this batch
            for _, done in batch:
                if not done.done():
                    done.set_exception(error)
            return
        for (request, done), completion in zip(batch, completions, strict=True):
            if not done.done():
                done.set_result(self._output(request, completion))

    def _output(self, request: Request, completion: Completion) -> TokenOutput:
        return TokenOutput(
            token_ids=completion.tokens,
            log_probs=completion.log_probs if request.params.logprobs else None,
            stop_reason="completed",
            extra_fields={"global_steps": self._global_steps},
        )

    async def update_weights(
        self, weights: Sequence[tuple[str, torch.Tensor]], last: bool, global_steps: int | None
    ) -> None:
        """Take a part of the trainer's weights; with the last one they are in force."""
        self._weights.load(weights)
        if last:
            self._weights.finish()
            self._global_steps = global_steps
            self._unseeded.clear()

    async def set_global_steps(self, global_steps: int) -> None:
        """Set the version of the weights, which answers carry."""
        self._global_steps = global_steps

    async def abort_all_requests(self, reject_request: bool = False, **_kwargs: object) -> None:
        """Hold back new requests and wait for those under way, which takes seconds here."""
        self._open.clear()
        await self._idle.wait()

    async def resume_generation(self) -> None:
        """Let requests in again."""
        self._open.set()

    async def node_ip(self) -> str:
        """Address of the node; also tells that the model has been built."""
        node_ip: Callable[[], str] = ray.util.get_node_ip_address
        return node_ip()

    # There is no device memory to give back and no profiler to drive:

    async def wake_up(self, tags: object = None) -> None:  # noqa: D102
        pass

    async def sleep(self) -> None:  # noqa: D102
        pass

    async def clear_kv_cache(self) -> None:  # noqa: D102
        pass

    async def release_kv_cache(self) -> None:  # noqa: D102
        pass

    async def resume_kv_cache(self) -> None:  # noqa: D102
        pass

    async def start_profile(self, **_kwargs: object) -> None:  # noqa: D102
        pass

    async def stop_profile(self) -> None:  # noqa: D102
        pass


def _empty_model(model_config: HFModelConfig, dtype: str) -> PreTrainedModel:
    """Build the model without weights; the first synchronisation, before any request, brings them."""
    hf_config = copy.deepcopy(model_config.hf_config)
    # verl's HFModelConfig asks for flash_attention_2, which needs CUDA.
    hf_config._attn_implementation = "sdpa"
    build: Callable[..., PreTrainedModel] = AutoModelForCausalLM.from_config
    return build(hf_config, dtype=getattr(torch, dtype), attn_implementation="sdpa")


def _end_of_sequence(model_config: HFModelConfig) -> list[int]:
    generation_config = model_config.generation_config
    ends = getattr(generation_config, "eos_token_id", None)
    if ends is None:
        ends = model_config.tokenizer.eos_token_id
    return list(ends) if isinstance(ends, list | tuple) else [ends]
