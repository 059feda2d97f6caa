"""A real SLURM cluster with accounting and GPUs on one machine; root is needed.

The controller `ctl` (munge, MariaDB, slurmdbd, slurmctld; also the login node) is one set of namespaces, each node
another one inside it. A node has its own hostname, address, /tmp and /dev/shm; other folders are the machine's,
as on a shared file system. The GPUs are device files without a device: SLURM counts and assigns them.
"""

import contextlib
import os
import secrets
import shutil
import signal
import string
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandbox.namespaces import SandboxError, inside, pid_within, start_host, wait_for

HERE = Path(__file__).resolve().parent
NETWORK = "10.77.0"
# An account without rights besides root: two users' jobs must not disturb each other.
USER, USER_ID = "alice", 2001
ACCOUNT = "rl"
PACKAGES = "slurmctld slurmd slurmdbd slurm-client munge mariadb-server iproute2"
DATABASE = (
    "create database if not exists slurm_acct_db;"
    "create user if not exists slurm@'127.0.0.1' identified by 'sandbox';"
    "grant all on slurm_acct_db.* to slurm@'127.0.0.1';"
)


@dataclass(frozen=True)
class Cluster:
    """A sandbox in folder `state`: `nodes` named n1, n2, ... with `cpus` cores, `memory_mb` and `gpus` each.

    `shared` are folders that nodes see although they lie under /tmp. Every method may be called from a process
    other than the one that called `up`.
    """

    state: Path
    nodes: int = 2
    # claimed, not there: so that a site file's defaults fit
    cpus: int = 32
    memory_mb: int = 200000
    gpus: int = 4
    shared: tuple[Path, ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of the nodes."""
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    @property
    def is_up(self) -> bool:
        """Whether the controller runs."""
        return self._pid("ctl") is not None

    def up(self) -> None:
        """Bring the cluster up, empty, in about five seconds; does nothing when it is up."""
        if self.is_up:
            return
        _require_programs()
        shutil.rmtree(self.state, ignore_errors=True)
        self._write_configuration()
        closed = [path for path in self.state.parents if not path.stat().st_mode & 0o001]
        if closed:
            raise SandboxError(f"{closed[-1]}: SLURM's and MariaDB's accounts may not enter it; use another --state")
        try:
            self._remember("ctl", start_host(self._init("ctl"), self._log("ctl")))
            wait_for((self.state / "run/ctl.ready").exists, "the controller's namespaces", 20)
            self._start_database()
            self.start_daemon("slurmdbd")
            self._make_accounts()
            self.start_daemon("slurmctld")
            for name in self.names:
                self.boot(name)
            self.wait_until_idle()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """End every process of the cluster; its namespaces, mounts and network devices go with them."""
        pid = self._pid("ctl")
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the end of the controller", 10)
        for file in (self.state / "run").glob("*.pid"):
            file.unlink()

    def remove(self) -> None:
        """Bring the cluster down and remove its folder: nothing is left."""
        self.down()
        shutil.rmtree(self.state, ignore_errors=True)

    def run(
        self,
        *command: str | Path,
        folder: Path | None = None,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
        timeout: float = 120,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command on the controller to its end."""
        return subprocess.run(
            self.command(*command, folder=folder, user=user),
            env=None if environment is None else dict(environment),
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def ask(self, *command: str | Path) -> str:
        """Return what a command on the controller prints; raises `SandboxError` when it fails."""
        done = self.run(*command)
        if done.returncode:
            raise SandboxError(f"{' '.join(map(str, command))}: {done.stderr or done.stdout}")
        return done.stdout

    def command(self, *command: str | Path, folder: Path | None = None, user: str | None = None) -> list[str]:
        """Return the command line, for this machine, that runs a command on the controller."""
        words = list(map(str, command))
        if user is not None:
            account = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
            words = [*account, "env", f"HOME={self.state}/home", f"USER={user}", *words]
        return inside(self.living("ctl"), words, folder)

    def run_on(self, node: str, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command on a node to its end."""
        return subprocess.run(inside(self.living(node), command), capture_output=True, text=True, timeout=60)

    def processes_on(self, node: str) -> list[str]:
        """Return the command lines of a node's processes without those that every node has."""
        own = ("init.sh", "munged", "slurmd", "sleep 3600", "ps -eo")
        listed = self.run_on(node, "ps", "-eo", "args", "--no-headers").stdout.splitlines()
        return [line for line in listed if not any(word in line for word in own)]

    def crash(self, node: str) -> None:
        """Let a node die: every process on it is gone at once, its network too."""
        os.kill(self.living(node), signal.SIGKILL)
        (self.state / f"run/{node}.pid").unlink()

    def boot(self, node: str) -> None:
        """Start a node."""
        ready = self.state / f"run/{node}.ready"
        ready.unlink(missing_ok=True)
        pid = start_host(self._init(node), self._log(node), within=self.living("ctl"))
        self._remember(node, pid)
        address, link = 10 + int(node[1:]), f"v-{node}"
        self.run("ip", "link", "del", link)  # left by a crash
        # With another MAC address after a reboot, the others would go on sending to the old one for a while.
        peer = f"peer name eth0 address 02:00:0a:4d:00:{address:02x} netns {pid_within(pid, 1)}"
        self.ask("ip", "link", "add", link, "type", "veth", *peer.split())
        self.ask("ip", "link", "set", link, "master", "br0", "up")
        wait_for(ready.exists, f"node {node}", 20)

    def start_daemon(self, name: str) -> None:
        """Start slurmctld or slurmdbd, and wait until it answers."""
        self.ask(name)
        question = {"slurmctld": ("scontrol", "ping"), "slurmdbd": ("sacctmgr", "-n", "-i", "list", "cluster")}[name]
        wait_for(lambda: "DOWN" not in (answer := self.run(*question)).stdout and not answer.returncode, name, 30)

    def stop_daemon(self, name: str) -> None:
        """Kill slurmctld or slurmdbd, as a crash of its host does."""
        pid_file = self.state / f"run/{name}.pid"
        self.run("kill", "-9", pid_file.read_text().strip())
        pid_file.unlink(missing_ok=True)

    def wait_until_idle(self, seconds: float = 60) -> None:
        """Wait until every node is there and has no job."""

        def idle() -> bool:
            found = self.run("sinfo", "-h", "-N", "-p", "gpu", "-t", "idle", "-r", "-o", "%N").stdout.split()
            return set(found) == set(self.names)

        wait_for(idle, "idle nodes", seconds)

    def _write_configuration(self) -> None:
        for folder in ("etc/slurm", "run", "log", "spool/ctld", "dev", "home"):
            (self.state / folder).mkdir(parents=True)
        self.state.chmod(0o755)
        values = {
            "state": self.state,
            "network": NETWORK,
            "nodes": self.nodes,
            "last": 10 + self.nodes,
            "cpus": self.cpus,
            "memory_mb": self.memory_mb,
            "gpus": self.gpus,
            "last_gpu": self.gpus - 1,
        }
        for template in (HERE / "etc").glob("*.conf"):
            text = string.Template(template.read_text()).safe_substitute(values)
            (self.state / "etc/slurm" / template.name).write_text(text)
        for number in range(self.gpus):
            device = self.state / f"dev/nvidia{number}"
            os.mknod(device, 0o666 | 0o020000, os.makedev(1, 3))
            device.chmod(0o666)
        etc = self.state / "etc"
        (etc / "passwd").write_text(
            Path("/etc/passwd").read_text() + f"{USER}:x:{USER_ID}:{USER_ID}::{self.state}/home:/bin/bash\n"
        )
        (etc / "group").write_text(Path("/etc/group").read_text() + f"{USER}:x:{USER_ID}:\n")
        hosts = [(1, "ctl"), *((10 + number, f"n{number}") for number in range(1, self.nodes + 1))]
        (etc / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{NETWORK}.{n} {name}\n" for n, name in hosts))
        (etc / "munge.key").write_bytes(secrets.token_bytes(1024))
        (etc / "munge.key").chmod(0o400)
        os.chown(self.state / "home", USER_ID, USER_ID)
        secret = etc / "slurm/slurmdbd.conf"
        secret.chmod(0o600)
        for path in (secret, self.state / "spool/ctld", self.state / "log", self.state / "run"):
            shutil.chown(path, "slurm", "slurm")

    def _start_database(self) -> None:
        data, socket = self.state / "mysql", "/run/mysqld/mysqld.sock"
        data.mkdir()
        shutil.chown(data, "mysql", "mysql")
        with self._log("mariadb").open("w") as log:
            subprocess.run(
                ["mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={data}", "--skip-test-db",
                 "--auth-root-authentication-method=socket"],
                stdout=log, stderr=subprocess.STDOUT, check=True, timeout=60,
            )  # fmt: skip
        server = [
            "mariadbd", "--no-defaults", "--user=mysql", f"--datadir={data}", "--bind-address=127.0.0.1",
            "--port=3306", f"--socket={socket}", "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M",
            "--innodb-flush-log-at-trx-commit=0", "--skip-log-bin", "--performance-schema=0",
        ]  # fmt: skip
        with self._log("mariadb").open("a") as log:
            subprocess.Popen(
                self.command(*server),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        client = ("--no-defaults", "-S", socket)
        wait_for(lambda: self.run("mariadb-admin", *client, "ping").returncode == 0, "MariaDB", 30)
        self.ask("mariadb", *client, "-e", DATABASE)

    def _make_accounts(self) -> None:
        for words in (
            "add cluster box",
            f"add account {ACCOUNT} cluster=box",
            f"add user root,{USER} account={ACCOUNT} cluster=box",
            "add qos high priority=100",
            f"modify user root,{USER} set qos=normal,high",
        ):
            self.run("sacctmgr", "-i", *words.split())

    def _init(self, host: str) -> list[str]:
        number = 1 if host == "ctl" else 10 + int(host[1:])
        shared = [] if host == "ctl" else [str(path) for path in (self.state, *self.shared) if _is_in_tmp(path)]
        return [str(HERE / "init.sh"), str(self.state), host, f"{NETWORK}.{number}", *shared]

    def _log(self, name: str) -> Path:
        return self.state / "log" / f"{name}.out"

    def _remember(self, host: str, pid: int) -> None:
        (self.state / f"run/{host}.pid").write_text(str(pid))

    def _pid(self, host: str) -> int | None:
        with contextlib.suppress(FileNotFoundError, ValueError):
            pid = int((self.state / f"run/{host}.pid").read_text())
            if Path(f"/proc/{pid}").exists():
                return pid
        return None

    def living(self, host: str) -> int:
        """Return the id of a host's first process; raises `SandboxError` when the host is down."""
        pid = self._pid(host)
        if pid is None:
            raise SandboxError(f"{host} does not run; bring the sandbox up first (state: {self.state})")
        return pid


def _is_in_tmp(folder: Path) -> bool:
    return folder.resolve().is_relative_to("/tmp")


def _require_programs() -> None:
    programs = ("slurmctld", "slurmd", "slurmdbd", "sbatch", "munged", "mariadbd", "ip", "unshare", "nsenter")
    missing = [name for name in programs if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]
    if missing:
        raise SandboxError(
            f"missing: {', '.join(missing)}. On Debian: apt-get install --no-install-recommends {PACKAGES}"
        )
    if os.geteuid() != 0:
        raise SandboxError("the sandbox cluster makes namespaces and devices: it needs root")
