"""What test_launcher does to a small trainer, done to verl's main_ppo: too long for CI, `make test-full` runs it."""

import hashlib
import shutil

import pytest
import yaml
from conftest import ROOT, wait_until
from test_workflow import Clone

pytestmark = [pytest.mark.slurm, pytest.mark.training, pytest.mark.full, pytest.mark.timeout(3000)]


def test_preemption_and_a_crashed_node_leave_the_weights_as_they_would_have_been(cluster, shared):
    """Two runs of the same settings: one is left alone, the other one is preempted and then loses its node."""
    clone = Clone(cluster, shared / "rough")
    config = clone.small_config()
    small, demo = config["runs"]["demo"], yaml.safe_load((ROOT / "config.yaml").read_text())["runs"]["demo"]
    run = (
        demo
        | small
        | {"grpo": demo["grpo"] | small["grpo"]}
        | {"nodes": 1, "parallel": "auto", "steps": 8, "save_every": 100}
    )
    clone.write("mine.yaml", config | {"runs": {"demo": None, "calm": run, "rough": run}})
    status, said = clone.run("--", "results/calm/model/manifest.json", seconds=1200)
    assert status == 0, said

    running = clone.start("--", "results/rough/model/manifest.json")
    wait_until(lambda: steps_of(clone, 1) >= 2, "step 2", 600)
    node = clone.json("rough/train/segments/001/segment.json")["host"]
    cluster.ask(
        *("sbatch", "--partition=urgent", f"--nodelist={node}", "--exclusive", "--time=1", "--output=/dev/null"),
        *("--wrap", "sleep 3"),
    )
    wait_until(lambda: steps_of(clone, 2) >= 1, "a step of the second segment", 600)
    first = clone.json("rough/train/segments/001/segment.json")
    second = clone.json("rough/train/segments/002/segment.json")
    assert first["reason"] == "preempted"
    assert second["resumed_from"] == first["last_step"]

    cluster.crash(second["host"])
    assert running.wait(1200) == 0, clone.said()
    cluster.boot(second["host"])
    third = clone.json("rough/train/segments/003/segment.json")
    assert third["host"] != second["host"]
    assert third["resumed_from"] == second["resumed_from"]
    weights = [clone.folder / f"results/{run}/model/model.safetensors" for run in ("calm", "rough")]
    assert len({hashlib.sha256(file.read_bytes()).hexdigest() for file in weights}) == 1
    shutil.rmtree(clone.folder)


def steps_of(clone: Clone, segment: int) -> int:
    file = clone.folder / f"results/rough/train/segments/{segment:03d}/metrics.jsonl"
    return len(file.read_text().splitlines()) if file.is_file() else 0
