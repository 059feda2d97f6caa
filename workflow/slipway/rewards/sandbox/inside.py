"""What runs inside a sandbox: the prelude that sets the limits, then one of three parts.

* `program`: the model's program, with the test's input on stdin
* `candidate`: the model's program, and after it a loop that calls its functions when asked over a pipe
* `judge`: the tests, to which the program's functions are stand-ins that ask the candidate

Candidate and judge are in sandboxes of their own, so that a program never shares a process with its tests. Between
them go plain data only. This file is given to Python as text: it imports nothing of Slipway's, and the model's program
may see it.
"""

import ast
import base64
import builtins
import json
import os
import resource
import sys
from collections.abc import Callable
from typing import Any, BinaryIO, cast

MAX_DEPTH = 100


def limit(limits: dict[str, Any]) -> None:
    """Take on the sandbox's user, then the limits; both for good."""
    if limits["user"] is not None:
        os.setgroups([])
        user = limits["user"]
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    for name, value in limits["resources"].items():
        resource.setrlimit(getattr(resource, name), (value, value))


def run_program(job: dict[str, Any]) -> None:
    """Run the program as the main module."""
    sys.argv = ["program.py"]
    exec(compile(job["program"], "program.py", "exec"), {"__name__": "__main__"})


# --- plain data over a pipe ------------------------------------------------------------------------------------


def encode(value: Any, depth: int = 0) -> list[Any]:
    """Return `value` as JSON's types; raise TypeError for anything but plain data."""
    if depth > MAX_DEPTH:
        raise TypeError("nested too deeply")
    if value is None or isinstance(value, bool):
        return ["const", None if value is None else bool(value)]
    if isinstance(value, int):
        return ["int", hex(value)]
    if isinstance(value, float):
        return ["float", float.hex(value)]
    if isinstance(value, complex):
        return ["complex", [float.hex(value.real), float.hex(value.imag)]]
    if isinstance(value, str):
        return ["str", str(value)]
    if isinstance(value, bytes | bytearray):
        return ["bytes", base64.b64encode(value).decode()]
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return [kind.__name__, [encode(item, depth + 1) for item in value]]
    if isinstance(value, dict):
        return ["dict", [[encode(key, depth + 1), encode(item, depth + 1)] for key, item in value.items()]]
    raise TypeError(f"{type(value).__name__} is no plain data")


def decode(coded: list[Any]) -> Any:
    """Return the value that `encode` coded; made of builtin types alone."""
    kind, value = coded
    if kind == "const":
        return None if value is None else bool(value)
    if kind == "int":
        return int(value, 16)
    if kind == "float":
        return float.fromhex(value)
    if kind == "complex":
        return complex(float.fromhex(value[0]), float.fromhex(value[1]))
    if kind == "str":
        return str(value)
    if kind == "bytes":
        return base64.b64decode(value)
    if kind == "dict":
        return {decode(key): decode(item) for key, item in value}
    kinds: dict[str, Callable[..., Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
    return kinds[kind](decode(item) for item in value)


def send(file: BinaryIO, message: dict[str, Any]) -> None:
    """Write a message, one line."""
    file.write(json.dumps(message).encode() + b"\n")
    file.flush()


# --- candidate ---------------------------------------------------------------------------------------------------


def serve_candidate(job: dict[str, Any]) -> None:
    """Run the program, then call its functions as the judge asks; what they print goes nowhere."""
    requests, replies = os.fdopen(job["read"], "rb"), os.fdopen(job["write"], "wb")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    try:
        exec(compile(job["program"], "program.py", "exec"), namespace)
    except BaseException as error:
        send(replies, {"error": type(error).__name__, "text": str(error)[:500]})
        return
    send(replies, {"ready": True})
    for line in requests:
        asked = json.loads(line)
        arguments, keywords = decode(asked["arguments"]), decode(asked["keywords"])
        try:
            value = function_of(namespace, asked["function"])(*arguments, **keywords)
            send(replies, {"value": encode(value), "arguments": encode(arguments)})
        except BaseException as error:
            send(replies, {"error": type(error).__name__, "text": str(error)[:500]})


def function_of(namespace: dict[str, Any], name: str) -> Callable[..., Any]:
    """Return the program's function of that name, or the method of a class Solution, as some problems want it."""
    if name in namespace:
        return cast(Callable[..., Any], namespace[name])
    if "Solution" in namespace:
        return cast(Callable[..., Any], getattr(namespace["Solution"](), name))
    raise NameError(f"name {name!r} is not defined")


# --- judge ---------------------------------------------------------------------------------------------------------


class CandidateError(Exception):
    """The program's function raised what is no builtin exception."""


class CandidateEnded(BaseException):
    """The candidate ended, or answered what is no answer; no test can take that for an error it expects."""


class Candidate:
    """The candidate, as the tests see it: functions by name."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.replies, self.requests = os.fdopen(job["read"], "rb"), os.fdopen(job["write"], "wb")
        self.longest = job["longest"]
        self.calls = 0
        self.ended = False
        started = self.receive()
        if "error" in started:
            raise CandidateEnded(f"the program raises {started['error']}: {started.get('text')}")

    def receive(self) -> dict[str, Any]:
        """Return the candidate's next message."""
        line = self.replies.readline(self.longest)
        try:
            if not line.endswith(b"\n"):
                raise ValueError("the program ended, or its answer is too long")
            reply: dict[str, Any] = json.loads(line)
            if "value" in reply:
                reply["value"], reply["arguments"] = decode(reply["value"]), decode(reply["arguments"])
            return reply
        except Exception as error:
            self.ended = True
            raise CandidateEnded(str(error)) from None

    def function(self, name: str) -> Callable[..., Any]:
        """Return a stand-in for the candidate's function of that name."""

        def call(*arguments: Any, **keywords: Any) -> Any:
            self.calls += 1
            asked = {"function": name, "arguments": encode(arguments), "keywords": encode(keywords)}
            send(self.requests, asked)
            reply = self.receive()
            if "value" not in reply:
                raise known_error(reply.get("error"), reply.get("text"))
            for mine, changed in zip(arguments, reply["arguments"], strict=False):
                write_back(mine, changed)
            return reply["value"]

        call.__name__ = name
        return call


def known_error(name: Any, text: Any) -> Exception:
    """Return the builtin exception of that name, which tests may expect; another one for any other name."""
    kind = getattr(builtins, str(name), None)
    try:
        return kind(text) if issubclass(kind, Exception) else CandidateError(name, text)  # type: ignore[arg-type, misc]
    except TypeError:
        return CandidateError(name, text)


def write_back(mine: Any, changed: Any) -> None:
    """Do to an argument what the function did to its copy: a test may look at a list that was sorted in place."""
    if type(mine) is not type(changed) or mine == changed:
        return
    if isinstance(mine, list):
        mine[:] = changed
    elif isinstance(mine, dict | set):
        mine.clear()
        mine.update(changed)


def judge(job: dict[str, Any]) -> dict[str, Any]:
    """Run the tests against the candidate; return the verdict."""
    try:
        candidate = Candidate(job)
    except CandidateEnded as error:
        return {"passed": False, "why": str(error)}
    namespace: dict[str, Any] = {"__name__": "tests"}
    try:
        # helpers that the problem shows, and tests may use
        exec(compile(job["prompt"], "prompt.py", "exec"), namespace)
    except SyntaxError:
        pass  # it ends in mid-function, for the program to complete
    except Exception as error:
        return {"faulty": f"the problem's own code raises {type(error).__name__}: {error}"}
    try:
        tree = ast.parse(job["tests"], "tests.py")
    except (SyntaxError, ValueError) as error:
        return {"faulty": f"the tests do not compile: {error}"}
    entry_points = {job["entry_point"]} if job["entry_point"] else set()
    for name in entry_points | missing_names(tree, namespace):
        namespace[name] = candidate.function(name)
    try:
        exec(compile(tree, "tests.py", "exec"), namespace)
        if job["entry_point"] and any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body):
            namespace["check"](namespace[job["entry_point"]])
    except BaseException as error:
        return {"passed": False, "why": f"{type(error).__name__}: {str(error)[:500]}"}
    if candidate.calls == 0:
        return {"faulty": "the tests never call the program"}
    return {"passed": not candidate.ended, "why": "the program ended" if candidate.ended else None}


def missing_names(tree: ast.AST, namespace: dict[str, Any]) -> set[str]:
    """Return the names that the tests use and nothing defines: they are the program's."""
    used: set[str] = set()
    own = set(dir(builtins)) | set(namespace)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else own).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.arg):
            own.add(node.arg)
        elif isinstance(node, ast.alias):
            own.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            own.add(node.name)
    return used - own


def main() -> None:
    """Do the job in the file that is open as the first argument says."""
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        job = json.load(file)
    limit(job["limits"])
    if job["part"] == "program":
        run_program(job)
    elif job["part"] == "candidate":
        serve_candidate(job)
    else:
        verdict_pipe = os.fdopen(os.dup(1), "wb")
        # what tests print must not be taken for the verdict
        os.dup2(2, 1)
        send(verdict_pipe, judge(job))


main()
