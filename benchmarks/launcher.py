"""What the launcher adds to a training on SLURM, part by part: from the job's start to the trainer's, and from the last
step to the manifest. Runs the tests' small trainer on the sandbox cluster (root; Debian's SLURM), one node and two.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/slurm"))

from sandbox.cluster import Cluster  # noqa: E402  (needs the path above)


def main() -> None:
    """Measure both and print one JSON object; seconds."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as temporary:
        Path(temporary).chmod(0o755)
        cluster = Cluster(Path(temporary) / "sandbox", shared=(ROOT,))
        cluster.up()
        try:
            figures = {f"nodes_{nodes}": measure(cluster, Path(temporary) / f"run{nodes}", nodes) for nodes in (1, 2)}
        finally:
            cluster.down()
    single = figures["nodes_1"]
    print(json.dumps({"startup_s": single["startup_s"], "shutdown_s": single["shutdown_s"], **figures}))


def measure(cluster: Cluster, folder: Path, nodes: int) -> dict[str, object]:
    """Launch one training, and read the times that its files and SLURM have kept."""
    command = [sys.executable, "-P", str(ROOT / "tests/slurm/launch_small.py"), str(folder), "--nodes", str(nodes)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'workflow'}:{ROOT / 'tests/slurm'}"}
    subprocess.run(cluster.command(*command, folder=ROOT), env=environment, check=True, stdout=subprocess.DEVNULL)
    job = json.loads((folder / "train/job.json").read_text())["job"]
    started = datetime.fromisoformat(
        cluster.ask("squeue", "-h", "--states=all", "--format=%S", f"--jobs={job}").strip()
    )
    segment = folder / "train/segments/001"
    record = json.loads((segment / "segment.json").read_text())
    trainer = float(re.search(r"^trainer began at ([\d.]+)", (segment / "main_ppo.log").read_text(), re.M)[1])
    last_step = (segment / "metrics.jsonl").stat().st_mtime
    manifest = (folder / "train/manifest.json").stat().st_mtime
    startup = {
        "submitit_and_imports": record["started"] - started.timestamp(),
        "ray_and_trainer_start": trainer - record["started"],
    }
    shutdown = {
        "trainer_and_ray_end": record["ended"] - last_step,
        "job_end_and_manifest": manifest - record["ended"],
    }
    return {
        "startup_s": round(sum(startup.values()), 1),
        "shutdown_s": round(sum(shutdown.values()), 1),
        "startup": {part: round(seconds, 1) for part, seconds in startup.items()},
        "shutdown": {part: round(seconds, 1) for part, seconds in shutdown.items()},
    }


if __name__ == "__main__":
    main()
