"""Slipway's trainer sends the engine all that the installed verl reads there, and imports the rollout engine early."""

import importlib.util
import re
import threading
from pathlib import Path

import pytest
from omegaconf import OmegaConf

pytestmark = pytest.mark.verl

# read by nothing that Slipway trains: images, other pads, a critic, and what verl adds to a batch by itself
NOT_SENT = {
    *("attention_mask", "multi_modal_inputs", "values"),
    *("dp_size", "batch_num_tokens", "global_batch_size", "num_micro_batch", "temperature"),
    *("max_token_len_per_gpu", "micro_batch_size_per_gpu"),
}
READERS = (
    "workers/utils/losses.py",
    "workers/utils/padding.py",
    "workers/engine/utils.py",
    "workers/engine/megatron/transformer_impl.py",
)
READS = re.compile(r"""\b(?:data|batch|micro_batch)(?:\[|\.get\()["'](\w+)["']""")


def verl_file(name: str) -> str:
    found = importlib.util.find_spec("verl")
    return (Path(found.submodule_search_locations[0]) / name).read_text()


def test_every_field_that_verl_reads_is_sent():
    # importing the trainer imports verl
    from slipway.launch.verl_changes.trainer import ENGINE_FIELDS

    padding = verl_file("workers/utils/padding.py")
    # of the padding module only the function that this path calls
    used = padding[padding.index("def no_padding_2_padding") : padding.index("def build_attention_mask_from_nested")]
    read = {
        field for name in READERS for field in READS.findall(used if name.endswith("padding.py") else verl_file(name))
    }
    assert {"input_ids", "loss_mask", "old_log_probs", "advantages", "ref_log_prob", "response_mask"} <= read
    assert read - NOT_SENT <= set(ENGINE_FIELDS)


@pytest.mark.parametrize("method", ["_compute_old_log_prob", "_compute_ref_log_prob", "_update_actor"])
def test_no_other_field_is_asked_for(method, monkeypatch):
    from transfer_queue import KVBatchMeta
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    from slipway.launch.verl_changes.trainer import ENGINE_FIELDS, StoppableTrainer

    # verl's own method needs a running engine: here it only shows what it was given
    monkeypatch.setattr(PPOTrainerSync, method, lambda self, batch, metrics: batch)
    batch = KVBatchMeta(keys=["a_0_0"], tags=[{"seq_len": 3}], partition_id="train", extra_info={"temperature": 1.0})
    given = getattr(object.__new__(StoppableTrainer), method)(batch, {})
    assert given.fields == ENGINE_FIELDS
    assert (given.keys, given.tags, given.extra_info) == (batch.keys, batch.tags, batch.extra_info)


def test_the_rollout_engine_is_imported_before_verl_asks_for_it(monkeypatch):
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    from slipway.launch.verl_changes.trainer import StoppableTrainer

    asked = threading.Event()
    monkeypatch.setitem(RolloutReplicaRegistry._registry, "slow to import", asked.set)
    # what verl does there needs Ray and a whole config
    monkeypatch.setattr(PPOTrainerSync, "_init_resource_pool_mgr", lambda _self: None)
    trainer = object.__new__(StoppableTrainer)
    rollout = {"name": "slow to import", "disaggregation": {"enabled": False}}
    trainer.config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}})
    trainer._init_resource_pool_mgr()
    assert asked.wait(30)
