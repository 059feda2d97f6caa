"""Programs that try to get out of the sandbox, or to pass tests that they do not solve.

Each escape is tried twice: with every protection it must fail, and with the one that stops it switched off it must
succeed, so that the test is known to try what it says. What a program may do to this machine without that protection
is bounded by the program itself.
"""

import dataclasses
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from slipway.rewards.sandbox import Isolation, Limits, Sandbox, judge_functions, judge_outputs, unavailable
from slipway.rewards.sandbox.isolation import MACHINE
from slipway.rewards.sandbox.process import Output, read_output, started

MIB = 2**20
LIMITS = Limits(seconds=2, memory=192 * MIB, processes=8, files=8 * MIB, output=64 * 1024)
MARK = b"ESCAPED"

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]


def test_there_is_a_sandbox_to_test() -> None:
    assert unavailable() is None


def run(program: str, limits: Limits = LIMITS, **switched_off: bool) -> Output:
    sandbox = Sandbox(limits, dataclasses.replace(Isolation(), **switched_off))
    seconds = limits.wall_seconds if sandbox.isolation.time_limit else 60
    with started(sandbox, {"part": "program", "program": program}, read=True) as process:
        return read_output(process, sandbox, time.monotonic() + seconds)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder of the machine that every user may write to."""
    path = Path(tempfile.mkdtemp(dir="/var/tmp"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def listener() -> Iterator[int]:
    """Return the port of a server on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


READ_KEY = """
import pathlib
print("ESCAPED" if "PRIVATE" in pathlib.Path({path!r}).read_text() else "")
"""
READ_ENVIRONMENT = """
import os
print("ESCAPED" if "secret" in os.environ.values() else os.environ)
"""
CONNECT = """
import socket
socket.create_connection(("127.0.0.1", {port}), timeout=2)
print("ESCAPED")
"""
FORK_BOMB = """
import os, time
for number in range(60):
    if os.fork() == 0:
        time.sleep(2)
        os._exit(0)
print("ESCAPED")
"""
THREAD_BOMB = """
import threading, time
threading.stack_size(65536)
for number in range(60):
    threading.Thread(target=time.sleep, args=(2,), daemon=True).start()
print("ESCAPED", flush=True)
__import__("os")._exit(0)
"""
FILL_MEMORY = """
held = bytearray(256 * 2**20)
print("ESCAPED")
"""
FILL_MEMORY_BY_CHILDREN = """
import os, time
for number in range(6):
    if os.fork() == 0:
        held = b"x" * (64 * 2**20)
        time.sleep(1.5)
        os._exit(0)
time.sleep(1.2)
print("ESCAPED")
"""
FILL_KERNEL_MEMORY = """
import os
held = os.memfd_create("held")
os.write(held, bytes(2**20))
print("ESCAPED")
"""
SOCKET_OF_ANOTHER_KIND = """
import socket
socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
print("ESCAPED")
"""
OWN_NAMESPACE = """
import ctypes
if ctypes.CDLL(None).unshare(0x10000000) == 0:
    print("ESCAPED")
"""
FILL_DISK_BY_ONE_FILE = """
with open("/tmp/large", "wb") as file:
    for _ in range(24):
        file.write(bytes(2**20))
print("ESCAPED")
"""
FILL_DISK_BY_MANY_FILES = """
for number in range(24):
    with open(f"/tmp/{number}", "wb") as file:
        file.write(bytes(2**20))
print("ESCAPED")
"""
WRITE_ANYWHERE = """
import os
for folder, _, _ in os.walk("/"):
    try:
        with open(folder + "/file", "w") as file:
            print(folder)
    except OSError:
        pass
"""
ENDLESS_OUTPUT = """
import sys
for _ in range(16):
    sys.stdout.write("x" * 2**16)
print("ESCAPED")
"""
ENDLESS_COMPUTATION = """
import time
while time.process_time() < 3:
    pass
print("ESCAPED")
"""
EXECUTE = """
import os
for shell in ("/bin/sh", "/machine/bin/sh"):
    try:
        os.execv(shell, ["sh", "-c", "echo ESCAPED"])
    except FileNotFoundError:
        pass
"""
WRITE_RESULT = """
with open({path!r}, "w") as file:
    file.write("better")
print("ESCAPED")
"""


@pytest.mark.parametrize(
    ("program", "switched_off"),
    [
        (FORK_BOMB, "process_limit"),
        (THREAD_BOMB, "process_limit"),
        (FILL_MEMORY, "memory_limit"),
        (FILL_MEMORY_BY_CHILDREN, "memory_limit"),
        (FILL_KERNEL_MEMORY, "call_filter"),
        (SOCKET_OF_ANOTHER_KIND, "call_filter"),
        (FILL_DISK_BY_ONE_FILE, "file_limit"),
        (FILL_DISK_BY_MANY_FILES, "file_limit"),
        (ENDLESS_OUTPUT, "output_limit"),
        (ENDLESS_COMPUTATION, "time_limit"),
        (EXECUTE, "own_files"),
    ],
    ids=lambda value: next((name for name, text in globals().items() if text is value), value),
)
def test_the_machine_is_not_used_up(program: str, switched_off: str) -> None:
    limits = LIMITS
    if switched_off == "process_limit":  # many processes take memory too, and it is not that limit that is tried
        limits = dataclasses.replace(LIMITS, memory=2048 * MIB)
    assert MARK not in run(program, limits).text
    assert MARK in run(program, limits, **{switched_off: False}).text


def test_namespaces_of_its_own_are_refused() -> None:
    assert MARK not in run(OWN_NAMESPACE).text
    if os.geteuid() == 0:  # others are refused twice, by bubblewrap's own option too
        assert MARK in run(OWN_NAMESPACE, call_filter=False).text


def test_keys_are_not_there(folder: Path) -> None:
    key = folder / ".ssh" / "id_ed25519"
    key.parent.mkdir(mode=0o755)
    key.write_text("-----BEGIN OPENSSH PRIVATE KEY-----")
    assert MARK not in run(READ_KEY.format(path=str(key))).text
    assert MARK not in run(READ_KEY.format(path=MACHINE + str(key))).text
    assert MARK in run(READ_KEY.format(path=MACHINE + str(key)), own_files=False).text


def test_the_environment_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPWAY_TEST_TOKEN", "secret")
    assert MARK not in run(READ_ENVIRONMENT).text
    assert MARK in run(READ_ENVIRONMENT, empty_environment=False).text


def test_there_is_no_network(listener: int) -> None:
    program = CONNECT.format(port=listener)
    assert MARK not in run(program).text
    assert MARK in run(program, namespaces=False).text


def test_results_cannot_be_written(folder: Path) -> None:
    result = folder / "metrics.json"
    assert MARK not in run(WRITE_RESULT.format(path=str(result))).text
    program = WRITE_RESULT.format(path=MACHINE + str(result))
    # either of two protections is enough
    assert MARK not in run(program, own_files=False).text
    assert not result.exists()
    assert MARK in run(program, own_files=False, read_only=False).text
    assert result.read_text() == "better"


DAEMON = """
import ctypes, os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(15, {name!r}.encode(), 0, 0, 0)
        for fd in range(3, 64):
            try:
                os.close(fd)
            except OSError:
                pass
        null = os.open("/dev/null", os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        time.sleep(30)
    os._exit(0)
time.sleep(0.3)
"""


def named(name: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter(["name"]) if process.info["name"] == name]


def test_only_its_own_small_folder_can_be_written() -> None:
    assert run(WRITE_ANYWHERE).text.split() == [b"/tmp"]


def test_nothing_survives() -> None:
    name = f"daemon{os.getpid()}"
    run(DAEMON.format(name=name))
    time.sleep(0.3)
    assert named(name) == []
    run(DAEMON.format(name=name), namespaces=False)
    survivors = named(name)
    for survivor in survivors:
        survivor.send_signal(signal.SIGKILL)
    assert survivors != []


def test_what_sleeps_is_ended_by_the_clock() -> None:
    limits = dataclasses.replace(LIMITS, seconds=0.2)
    began = time.monotonic()
    assert run("import time\ntime.sleep(60)", limits).ended == "time limit"
    assert run("import os, time\nos.close(1)\ntime.sleep(60)", limits).ended == "time limit"
    assert time.monotonic() - began < 2 * limits.wall_seconds + 5


def test_it_dies_with_the_process_that_scores() -> None:
    name = f"orphan{os.getpid()}"
    program = f"import ctypes, time\nctypes.CDLL(None).prctl(15, {name.encode()!r}, 0, 0, 0)\ntime.sleep(60)"
    scorer = subprocess.Popen(
        [
            *(sys.executable, "-P", "-c"),
            "from slipway.rewards.sandbox import Limits, Sandbox, judge_outputs\n"
            f"judge_outputs({program!r}, [{{'input': '', 'output': ''}}], Sandbox(Limits(seconds=60)))",
        ]
    )
    deadline = time.monotonic() + 30
    while not named(name) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert named(name)
    scorer.kill()
    scorer.wait()
    deadline = time.monotonic() + 5
    while named(name) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not named(name)


@pytest.mark.parametrize("call", ["os.setuid(0)", "os.setgroups([0])", "os.chroot('/tmp')", "os.kill(1, 9)"])
def test_no_rights_are_left(call: str) -> None:
    if os.geteuid() != 0 and "kill" in call:
        pytest.skip("in a namespace of one's own user, its first process is one's own")
    assert MARK not in run(f"import os\n{call}\nprint('ESCAPED')").text


# --- tests that are to be fooled ---------------------------------------------------------------------------------

TESTS = "assert solve(20) == 400\nassert solve(3) == 9\n"
FORGERIES = {
    "ends before the tests": "import os\nos._exit(0)",
    "ends in a test": "import os\ndef solve(x):\n    os._exit(0)",
    "ends at the end": "import atexit, os\natexit.register(os._exit, 0)\ndef solve(x): return x",
    "leaves politely": "raise SystemExit(0)",
    "executes something else": "import os, sys\nos.execv({python!r}, ['python', '-c', ''])",
    "is equal to everything": "class Any(int):\n    def __eq__(self, other): return True\n    __hash__ = None\n"
    "def solve(x): return Any()",
    "runs no test": "import builtins\nbuiltins.exec = lambda *_: None\nbuiltins.compile = lambda *a, **k: a[0]",
    "prints a success": "import os\nfor fd in range(64):\n"
    '    try: os.write(fd, b\'{{"passed": true, "why": null}}\\n\')\n'
    "    except OSError: pass\nos._exit(0)",
    "answers unasked": "import os\nfor fd in range(3, 64):\n    try:\n        os.write(fd, b'{{\"ready\": true}}\\n' + "
    'b\'{{"value": ["int", "0x190"], "arguments": ["list", []]}}\\n\' * 9)\n    except OSError: pass\nos._exit(0)',
    "reads the tests": "import gc, re, sys\n"
    "def solve(x):\n"
    "    frame, texts = sys._getframe(), []\n"
    "    while frame:\n"
    "        texts += [str(v) for v in [*frame.f_globals.values(), *frame.f_locals.values()] if type(v) is str]\n"
    "        frame = frame.f_back\n"
    "    for text in texts:\n"
    "        found = re.search(rf'assert solve\\({{x}}\\) == (\\d+)', text)\n"
    "        if found: return int(found[1])\n",
    "replaces the tests' world": "import os, sys\nsys.excepthook = lambda *_: os._exit(0)\ndef solve(x): return x",
}


def naive_verdict(program: str, tests: str) -> bool:
    """Judge as many do: program and tests in one process, whose status decides."""
    source = f"tests = {tests!r}\nprogram = {program!r}\nspace = {{}}\nexec(program, space)\nexec(tests, space)\n"
    return subprocess.run([sys.executable, "-c", source], capture_output=True, timeout=30, check=False).returncode == 0


@pytest.mark.parametrize("name", FORGERIES)
def test_a_verdict_cannot_be_forged(name: str) -> None:
    program = FORGERIES[name].format(python=sys.executable, x="{x}")
    verdict = judge_functions(program, TESTS, "", "solve", Sandbox(LIMITS))
    assert not verdict.passed
    assert naive_verdict(program, TESTS)


def test_an_honest_program_passes_beside_them() -> None:
    assert judge_functions("def solve(x): return x * x", TESTS, "", "solve", Sandbox(LIMITS)).passed


def test_an_end_is_no_error_that_a_test_expects() -> None:
    tests = "assert solve(1) == 1\ntry:\n    solve(-1)\nexcept Exception:\n    pass\nelse:\n    raise AssertionError\n"
    ending = "import os\ndef solve(x):\n    if x < 0:\n        {}\n    return x"
    assert judge_functions(ending.format("raise ValueError(x)"), tests, "", "solve", Sandbox(LIMITS)).passed
    assert not judge_functions(ending.format("os._exit(0)"), tests, "", "solve", Sandbox(LIMITS)).passed


def test_memory_of_all_its_processes_is_counted_in_a_test_too() -> None:
    program = "def solve(x):\n" + textwrap.indent(FILL_MEMORY_BY_CHILDREN, "    ") + "    return x * x\n"
    limits, once = dataclasses.replace(LIMITS, seconds=5), "assert solve(3) == 9\n"
    assert judge_functions(program, once, "", "solve", Sandbox(limits)).why == "memory limit"
    unlimited = Sandbox(limits, dataclasses.replace(Isolation(), memory_limit=False))
    assert judge_functions(program, once, "", "solve", unlimited).passed


def test_expected_outputs_are_not_in_reach() -> None:
    looking = (
        "import os, re, sys\nfound = []\n"
        "for fd in range(64):\n"
        "    try: found.append(os.pread(fd, 99999, 0))\n"
        "    except OSError: pass\n"
        "frame = sys._getframe()\n"
        "while frame:\n    found.append(repr(frame.f_globals) + repr(frame.f_locals))\n    frame = frame.f_back\n"
        "print(*set(re.findall(r'expected-[0-9]+', repr(found))))\n"
    )
    assert not judge_outputs(looking, [{"input": "", "output": "expected-4711"}], Sandbox(LIMITS)).passed
    # it does find what is there
    told = "told = 'expected-4711'\n" + looking
    assert judge_outputs(told, [{"input": "", "output": "expected-4711"}], Sandbox(LIMITS)).passed


def test_many_at_a_time_do_not_disturb_each_other() -> None:
    results: list[bool] = []

    def judge(number: int) -> None:
        program = f"def solve(x): return x * x + {number % 2}"
        results.append(judge_functions(program, TESTS, "", "solve", Sandbox(LIMITS)).passed == (number % 2 == 0))

    threads = [threading.Thread(target=judge, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 24


# --- machines where none can be made -------------------------------------------------------------------------------

SAY = "from slipway.rewards.sandbox import unavailable; print(unavailable())"


def unavailable_in(shell: str) -> str:
    """Return why there is no sandbox in a user namespace, such as a container's, in which `shell` has run first."""
    python = shlex.join([sys.executable, "-c", SAY])
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", f"{shell}; exec {python}"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2] / "workflow")}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return ended.stdout.strip()


def test_in_a_container_that_allows_it_there_is_one() -> None:
    assert unavailable_in("true") == "None"


def test_where_user_namespaces_are_forbidden_it_says_what_to_allow() -> None:
    said = unavailable_in("echo 0 > /proc/sys/user/max_user_namespaces")
    assert "bubblewrap cannot make a sandbox here (bwrap: " in said
    assert "the administrator must allow user namespaces: sysctl user.max_user_namespaces=" in said
