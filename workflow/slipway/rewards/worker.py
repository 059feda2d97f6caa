"""Calls with a time limit that holds, in a process of their own.

verl scores in threads, where a signal cannot interrupt anything. Here one long-lived child process does the work; a
call that takes too long, or brings the process down, costs that process, and the next call starts another.
"""

import atexit
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from slipway.errors import SlipwayError

# For the first answer of a new process, which imports first.
START_SECONDS = 120.0
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


class Worker:
    """One child process, started when first needed; calls from several threads take turns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def call(self, function: str, arguments: list[Any], seconds: float, otherwise: Any) -> Any:
        """Return what `module:function` returns for `arguments`, both of JSON's types.

        `otherwise` is returned when it takes longer than `seconds`, raises, or brings the process down.
        Raises `SlipwayError` when the process cannot be started.
        """
        with self._lock:
            process = self._running()
            try:
                answer = _exchange(process, {"function": function, "arguments": arguments}, seconds)
            except BaseException:
                self._end()
                raise
            if answer is None:
                self._end()
                return otherwise
            return answer.get("value", otherwise)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        environment = os.environ | {"PYTHONPATH": str(_PACKAGE_ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "slipway.rewards.worker_tasks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        ready = _exchange(
            self._process, {"function": "slipway.rewards.worker_tasks:ready", "arguments": []}, START_SECONDS
        )
        if ready is None or "value" not in ready:
            self._end()
            raise SlipwayError("the scorers' worker process does not start; the lines above say why")
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _exchange(process: subprocess.Popen[bytes], request: dict[str, Any], seconds: float) -> dict[str, Any] | None:
    """Send a request, a line of JSON; return the answer, None when none came in time or the process ended."""
    assert process.stdin is not None and process.stdout is not None
    deadline = time.monotonic() + seconds
    try:
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        return None
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                return None
            part = os.read(process.stdout.fileno(), 65536)
            if not part:
                return None
            line += part
    answer: dict[str, Any] = json.loads(line)
    return answer


_worker = Worker()
atexit.register(_worker.close)


def call(function: str, arguments: list[Any], seconds: float, otherwise: Any) -> Any:
    """`Worker.call` of this process's one worker."""
    return _worker.call(function, arguments, seconds, otherwise)
