"""verl's replay buffer with a batch order that is the same in every run, and a short poll."""

from typing import Any

from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer


class OrderedReplayBuffer(ReplayBuffer):
    """Plugged in with `trainer.v1.sampler.custom_sampler.{path,name}`, for `trainer_mode: sync`.

    verl names prompts with random ids, collects finished ones in a set, and orders trajectories by the moment
    they finished. Floating-point sums over the batch, and with them the weights, then differ between two runs
    of one config. Here prompts keep the order of the data loader, in which TransferQueue lists them, and
    trajectories that of their group.

    verl also passes a custom sampler neither its filtering options nor a poll interval (it sleeps two seconds a
    poll, longer than a small model generates); `trainer.v1.sampler.sampler_kwargs` can carry both. Keys are the
    arguments of verl's `ReplayBuffer`.
    """

    def __init__(self, *, sampler_kwargs: Any = None, poll_interval: float = 0.2, **kwargs: Any) -> None:
        options = dict(sampler_kwargs or {})
        options.setdefault("poll_interval", poll_interval)
        super().__init__(sampler_kwargs=sampler_kwargs, **kwargs, **options)

    def _select_prompt_uids(
        self, partition_id: str, sampleable_keys: set[str], batch_size: int
    ) -> tuple[list[str], dict[str, dict[str, Any]], dict[str, int]]:
        _, trajectories, steps = super()._select_prompt_uids(partition_id, sampleable_keys, batch_size)
        order = {uid: position for position, uid in enumerate(steps)}
        selected = sorted(sampleable_keys, key=lambda uid: (steps.get(uid, 0), order.get(uid, len(order))))
        return selected[:batch_size], trajectories, steps

    def _materialize_batch(
        self,
        partition_id: str,
        selected_prompt_uids: list[str],
        partition_snapshot: dict[str, dict[str, Any]],
    ) -> KVBatchMeta:
        position = {uid: index for index, uid in enumerate(selected_prompt_uids)}

        def place(key: str) -> tuple[int, int, int]:
            uid, session, output = key.split("_")
            return position[uid], int(session), int(output)

        batch = super()._materialize_batch(partition_id, selected_prompt_uids, partition_snapshot)
        order = sorted(range(len(batch.keys)), key=lambda index: place(batch.keys[index]))
        batch.keys = [batch.keys[index] for index in order]
        batch.tags = [batch.tags[index] for index in order]
        return batch
