"""The transformers rollout behind verl's rollout interface: the replica, and the trainer's end of weight updates."""

import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica
from verl.workers.rollout.utils import ensure_async_iterator

from slipway.cpu.environment import ROLLOUT_NAME
from slipway.cpu.server import TransformersServer
from slipway.errors import SlipwayError


def _server_name(replica_rank: int, suffix: str = "") -> str:
    return f"{ROLLOUT_NAME}_server_{replica_rank}{suffix}"


class TransformersReplica(RolloutReplica):
    """One server a replica; runs on the node of the replica's first trainer rank."""

    async def launch_servers(self) -> None:
        """Start the server actor and wait until its model is built."""
        if self.is_reward_model or self.is_teacher_model:
            raise SlipwayError("the CPU backend has no rollout for reward or teacher models")
        node_id = await self.workers[0].__ray_call__.remote(lambda _worker: ray.get_runtime_context().get_node_id())
        server = (
            ray.remote(TransformersServer)
            .options(
                name=_server_name(self.replica_rank, self.name_suffix),
                num_cpus=0,
                max_concurrency=self.max_concurrency,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node_id, soft=False),
            )
            .remote(self.config, self.model_config, self.replica_rank)
        )
        ip = await server.node_ip.remote()
        self.servers.append(server)
        self._server_handle = server
        # verl tells servers apart by address; nothing listens there.
        self._server_address = f"{ip}:{10000 + self.replica_rank}"


class WeightSender(BaseRollout):
    """Lives in every trainer rank; the first rank of each replica sends the weights to its server."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        rank = int(os.environ["RANK"])
        world_size = (
            self.config.tensor_model_parallel_size
            * self.config.data_parallel_size
            * self.config.pipeline_model_parallel_size
        )
        self._replica_rank = rank // world_size if replica_rank == -1 else replica_rank
        self._sends = rank % world_size == 0

    async def update_weights(
        self,
        weights: Any,
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        **_kwargs: object,
    ) -> None:
        """Send the weights in parts of bounded size."""
        if wire_format != "named_tensors":
            raise SlipwayError(f"the transformers rollout takes whole weights, not {wire_format!r}")
        limit = self.config.checkpoint_engine.update_weights_bucket_megabytes << 20
        part: list[tuple[str, torch.Tensor]] = []
        size = 0
        # Every rank has to draw every weight: drawing one gathers it from the other ranks.
        draw: Callable[..., AsyncIterator[tuple[str, torch.Tensor]]] = ensure_async_iterator
        async for name, weight in draw(weights):
            if not self._sends:
                continue
            part.append((name, weight.detach().clone()))  # the next weight may reuse its memory
            size += weight.nbytes
            if size >= limit:
                await self._send(part, False, global_steps)
                part, size = [], 0
        if self._sends:
            await self._send(part, True, global_steps)

    async def _send(self, part: list[tuple[str, torch.Tensor]], last: bool, global_steps: int | None) -> None:
        server = ray.get_actor(_server_name(self._replica_rank))
        await server.update_weights.remote(part, last, global_steps)

    async def resume(self, tags: list[str]) -> None:
        """Nothing was released."""

    async def release(self) -> None:
        """There is no device memory to give back."""
