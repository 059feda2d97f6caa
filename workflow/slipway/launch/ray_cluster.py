"""One Ray cluster over the nodes of a job: head on the first, a worker on each other one, nothing left behind.

Ports are free ones and the token is new for every start, so that jobs on one node do not meet. The tasks of a job
find each other through a file in the training's folder, which all nodes see.
"""

import json
import logging
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from slipway.errors import SlipwayError
from slipway.launch import allocation, processes
from slipway.manifest import write_text

# A cold Python environment on a busy file system takes minutes to import Ray.
JOIN_SECONDS = 600.0
POLL_SECONDS = 0.5

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Meeting:
    """How to reach the head: `address` is host:port, `token` what Ray asks for.

    `variables` are what the training's processes find in their environment wherever Ray places them: verl's trainer
    itself may run on any node.
    """

    address: str
    token: str
    variables: Mapping[str, str]

    def environment(self) -> dict[str, str]:
        """Return what makes a process on any node part of this cluster."""
        own = allocation.address_towards(self.address.rpartition(":")[0])
        interface = allocation.interface_of(own)
        return (
            dict(self.variables)
            | {
                "RAY_ADDRESS": self.address,
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN": self.token,
            }
            | ({"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {})
        )


class Head:
    """The head of the cluster; while it is entered, `environment` connects a process to it."""

    def __init__(
        self,
        folder: Path,
        others: list[str],
        options: Mapping[str, int],
        environment: Mapping[str, str],
        variables: Mapping[str, str],
        log: IO[bytes],
    ):
        self._file = folder / f"meeting-{allocation.start_id()}.json"
        self._others = others
        own = allocation.address_towards(others[0])
        self.meeting = Meeting(f"{own}:{_free_port(own)}", secrets.token_hex(32), variables)
        self._environment = dict(environment) | self.meeting.environment()
        port = self.meeting.address.rpartition(":")[2]
        self._command = [
            *_ray_start(own, options), "--head", f"--port={port}", "--include-dashboard=false",
            # nobody uses it, but it cannot be left out, and a second head on the node dies of the default port
            f"--ray-client-server-port={_free_port('127.0.0.1')}",
        ]  # fmt: skip
        self._log = log

    def __enter__(self) -> "Head":
        environment = {key: value for key, value in self._environment.items() if key != "RAY_ADDRESS"}
        self._process = processes.start_bound(self._command, environment, self._file.parent, self._log)
        write_text(self._file, json.dumps(asdict(self.meeting)), mode=0o600)
        try:
            self._wait_for_all()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    @property
    def environment(self) -> dict[str, str]:
        """Environment of a driver on this node."""
        return dict(self._environment)

    def _leave(self) -> None:
        # the workers end when the file is gone, and so before their head
        self._file.unlink(missing_ok=True)
        time.sleep(2 * POLL_SECONDS)
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _wait_for_all(self) -> None:
        """Wait until every node has joined; raises `SlipwayError` that names those which have not."""
        wanted = {socket.gethostname(), *self._others}
        deadline = time.monotonic() + JOIN_SECONDS
        joined: set[str] = set()
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise SlipwayError(f"Ray's head ended with status {self._process.returncode}; see the job's log")
            joined = _living_nodes(self._environment)
            if len(joined) >= len(wanted):
                logger.info("Ray: %d nodes joined at %s", len(joined), self.meeting.address)
                return
            time.sleep(1)
        raise SlipwayError(
            f"after {JOIN_SECONDS:.0f} s only {', '.join(sorted(joined)) or 'no node'} of {', '.join(sorted(wanted))} "
            "had joined Ray. Is the training's folder shared by all nodes, and do they reach each other?"
        )


def serve(folder: Path, options: Mapping[str, int], environment: Mapping[str, str], log: IO[bytes]) -> int:
    """Be a worker until the head's file is gone; return 0 then, and another status when Ray ended before."""
    file = folder / f"meeting-{allocation.start_id()}.json"
    meeting = _wait_for_meeting(file)
    # What a killed start has left on this node; not before the head, which owns the training, has called us.
    processes.end_marked(environment[processes.MARK])
    own = allocation.address_towards(meeting.address.rpartition(":")[0])
    command = [*_ray_start(own, options), f"--address={meeting.address}"]
    with_token = {k: v for k, v in (dict(environment) | meeting.environment()).items() if k != "RAY_ADDRESS"}
    worker = processes.start_bound(command, with_token, folder, log)
    while file.exists():
        if worker.poll() is not None:
            return worker.returncode or 1
        time.sleep(POLL_SECONDS)
    worker.terminate()
    try:
        worker.wait(15)
    except subprocess.TimeoutExpired:
        worker.kill()
    return 0


def _wait_for_meeting(file: Path) -> Meeting:
    deadline = time.monotonic() + JOIN_SECONDS
    while time.monotonic() < deadline:
        try:
            return Meeting(**json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            time.sleep(POLL_SECONDS)
    raise SlipwayError(f"{file}: the first node has not written it within {JOIN_SECONDS:.0f} s; is the folder shared?")


def _ray_start(address: str, options: Mapping[str, int]) -> list[str]:
    return [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats",
        f"--node-ip-address={address}", "--min-worker-port=0", "--max-worker-port=0",
        f"--dashboard-agent-listen-port={_free_port(address)}",
        *(f"--{name.replace('_', '-')}={value}" for name, value in options.items()),
    ]  # fmt: skip


# A process of its own: Ray in this one would take signals and threads that are ours.
_COUNT = """
import json, ray
ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
print(json.dumps([node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]]))
"""


def _living_nodes(environment: Mapping[str, str]) -> set[str]:
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _COUNT],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return set(json.loads(asked.stdout.splitlines()[-1]))
    except (subprocess.TimeoutExpired, IndexError, json.JSONDecodeError):
        return set()


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
