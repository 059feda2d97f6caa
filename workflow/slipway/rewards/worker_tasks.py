"""The worker process's side: reads a call a line, answers a line. What is called here may hang or crash."""

import importlib
import json
import os
import resource
import sys
import threading
import time
import warnings
from typing import Any

# An answer such as 10**10**10 is to end in MemoryError here, not to fill the machine.
ADDRESS_SPACE = 4 * 2**30


def ready() -> bool:
    """Import what takes seconds, so that calls are quick."""
    import math_verify  # noqa: F401

    return True


def compiles(code: str) -> bool:
    """Tell whether `code` compiles as Python."""
    try:
        compile(code, "<answer>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return False
    return True


def serve() -> None:
    """Answer calls until the other side closes."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "wb")
    # what a library prints must not be taken for an answer
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        answers.write(json.dumps(_answer(json.loads(line))).encode() + b"\n")
        answers.flush()


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    module, _, name = request["function"].partition(":")
    function = getattr(sys.modules["__main__"] if module == __spec__.name else importlib.import_module(module), name)
    try:
        return {"value": function(*request["arguments"])}
    except (Exception, RecursionError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _end_with_parent(parent: int) -> None:
    # a process that was killed closes no pipe while this one computes
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


if __name__ == "__main__":
    serve()
