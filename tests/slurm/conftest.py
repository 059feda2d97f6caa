"""The sandbox cluster, up once for all tests here, and trainings on it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sandbox.cluster import Cluster

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LAUNCH = (sys.executable, "-P", str(HERE / "launch_small.py"))
ENVIRONMENT = os.environ | {
    "PYTHONPATH": f"{ROOT / 'workflow'}:{HERE}",
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
}

# Tests that a shell runs in the background ignore it, and so would the launchers that they start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def wait_until(condition: Callable[[], object], what: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.2)


@pytest.fixture(scope="session")
def shared() -> Iterator[Path]:
    """A folder that all nodes see: each has a /tmp of its own, where pytest's folders would be."""
    folder = Path(f"/var/tmp/slipway-tests-{os.getpid()}")
    folder.mkdir()
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster(shared: Path, small_disk: Path) -> Iterator[Cluster]:
    sandbox = Cluster(shared / "sandbox", nodes=2, gpus=4, shared=(ROOT,))
    sandbox.up()
    yield sandbox
    sandbox.down()


@pytest.fixture(scope="session")
def small_disk(shared: Path) -> Iterator[Path]:
    """A file system of 4 MiB, mounted before the cluster comes up, so that its hosts see it."""
    folder = shared / "small-disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=777", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


class SmallTraining:
    """One training by the small trainer, launched and disturbed as a user, a cluster or bad luck would."""

    def __init__(self, cluster: Cluster, folder: Path, user: str | None = None, python: str = sys.executable):
        self.cluster, self.folder, self.user = cluster, folder, user
        self.launch = (python, *LAUNCH[1:])
        self.said = folder.with_suffix(".txt")
        self.options: tuple[str, ...] = ()

    def start(self, *options: object, path: str | None = None, within: tuple[str, ...] = ()) -> subprocess.Popen:
        """Start a launcher; options are kept, so that starting again without any is the same command.

        `path` comes before PATH; `within` is a command that runs the launcher, srun for instance.
        """
        if options:
            self.options = tuple(map(str, options))
        environment = ENVIRONMENT | ({"PATH": f"{path}:{ENVIRONMENT['PATH']}"} if path else {})
        if self.launch != LAUNCH:
            # another interpreter of the same version, which finds the packages of this one
            environment["PYTHONPATH"] += f":{sysconfig.get_path('purelib')}"
        with self.said.open("a") as out:
            return subprocess.Popen(
                self.cluster.command(*within, *self.launch, self.folder, *self.options, folder=ROOT, user=self.user),
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def finish(self, launcher: subprocess.Popen | None = None, seconds: float = 180) -> str:
        """Let the launcher (a new one without argument) come to its end; return all that was said."""
        status = (launcher or self.start()).wait(seconds)
        assert status == 0, self.text()
        return self.text()

    def fail(self, launcher: subprocess.Popen, seconds: float) -> str:
        """Wait for the launcher to end with an error within so many seconds."""
        assert launcher.wait(seconds) == 1, self.text()
        return self.text()

    def text(self) -> str:
        return self.said.read_text()

    def kill(self, launcher: subprocess.Popen) -> None:
        """kill -9 of the launcher, inside the cluster too: nsenter stands before it."""
        os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()

    @property
    def segments(self) -> list[dict]:
        return [json.loads(file.read_text()) for file in sorted(self.folder.glob("train/segments/*/segment.json"))]

    @property
    def job(self) -> str | None:
        record = self.folder / "train/job.json"
        return json.loads(record.read_text()).get("job") if record.is_file() else None

    def wait_for_step(self, step: int, segment: int = 1, seconds: float = 90) -> None:
        file = self.folder / f"train/segments/{segment:03d}/metrics.jsonl"
        wait_until(lambda: file.is_file() and len(file.read_text().splitlines()) >= step, f"step {step}", seconds)

    def jobs(self) -> list[str]:
        """Return the ids of all jobs that SLURM has ever had of this training."""
        name = json.loads((self.folder / "train/job.json").read_text())["name"]
        listed = self.cluster.ask("squeue", "--noheader", "--states=all", "--format=%i", f"--name={name}")
        return sorted(set(listed.split()))

    def weights(self) -> dict:
        import torch

        newest = max(self.folder.glob("train/checkpoints/global_step_*"), key=lambda path: int(path.name.split("_")[2]))
        return torch.load(newest / "state.pt")["model"] | {"step": newest.name}


@pytest.fixture
def training(cluster: Cluster, shared: Path, request: pytest.FixtureRequest) -> Iterator[SmallTraining]:
    small = SmallTraining(cluster, shared / request.node.name)
    yield small
    if small.job:
        cluster.run("scancel", small.job)
    cluster.wait_until_idle()
    wait_until(lambda: not any(map(cluster.processes_on, cluster.names)), "nodes without processes", 15)


@pytest.fixture(scope="session")
def undisturbed(shared: Path) -> Callable[[int], dict]:
    """Return the weights of a training of so many steps in one process, without a cluster."""
    known: dict[int, dict] = {}

    def weights(steps: int) -> dict:
        if steps not in known:
            folder = shared / f"undisturbed-{steps}"
            command = [*LAUNCH, str(folder), "--executor", "local", "--steps", str(steps), "--step-seconds", "0"]
            subprocess.run(command, env=ENVIRONMENT, check=True, timeout=120, capture_output=True)
            known[steps] = SmallTraining(None, folder).weights()
        return known[steps]

    return weights
