"""Task `code`: a program that passes unit tests, in the form of HumanEval, MBPP or APPS.

Fields: HumanEval `prompt`, `canonical_solution`, `test`, `entry_point`; MBPP `text` (or `prompt`), `code`,
`test_list`, and `test_setup_code` if any; APPS `question`, `solutions`, `input_output`, and `starter_code` if any.
"""

import ast
import json
from typing import Any

from slipway.data.records import Problem, Record, UnusableError


def problem(record: Record) -> Problem:
    """Return the problem; the answer is a gold program."""
    if record.has("entry_point") and record.has("test"):
        return _human_eval(record)
    if record.has("test_list"):
        return _mbpp(record)
    return _apps(record)


def _human_eval(record: Record) -> Problem:
    prompt = record.text("prompt")
    metadata = _metadata("function", record.text("entry_point"), record.text("test"), prompt)
    return Problem(prompt, record.text("canonical_solution"), metadata)


def _mbpp(record: Record) -> Problem:
    text = record.text("text" if record.has("text") else "prompt").strip()
    tests = _list(record, "test_list")
    if not tests:
        raise UnusableError("no tests")
    program = record.text("code").replace("\r\n", "\n")
    setup = record.text("test_setup_code") if record.has("test_setup_code") else ""
    # the tests say what the function is to be called
    question = "\n".join([text, "Your code should pass these tests:", *tests]) if text else ""
    body = "\n".join(part for part in (setup, *tests) if part)
    return Problem(question, program, _metadata("function", _entry_point(program, body), body))


def _apps(record: Record) -> Problem:
    question = record.text("question")
    given = record.get("input_output")
    cases = _json(given) if isinstance(given, str) else given
    inputs, outputs = (cases.get("inputs"), cases.get("outputs")) if isinstance(cases, dict) else (None, None)
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not inputs or len(inputs) != len(outputs):
        raise UnusableError("no tests")
    solutions = _list(record, "solutions")
    if cases.get("fn_name"):
        name = str(cases["fn_name"])
        tests = "\n".join(
            f"assert {name}({', '.join(map(repr, arguments))}) == {_unwrapped(expected)!r}"
            for arguments, expected in zip(inputs, outputs, strict=True)
        )
        starter = record.text("starter_code").strip() if record.has("starter_code") else ""
        shown = f"{question}\n{starter}" if starter else question
        return Problem(shown, solutions[0] if solutions else "", _metadata("function", name, tests))
    pairs = [{"input": _lines(put), "output": _lines(out)} for put, out in zip(inputs, outputs, strict=True)]
    return Problem(question, solutions[0] if solutions else "", _metadata("stdio", None, pairs))


def _metadata(style: str, entry_point: str | None, tests: Any, prompt: str = "") -> dict[str, Any]:
    if not tests:
        raise UnusableError("no tests")
    return {"style": style, "entry_point": entry_point, "prompt": prompt, "tests": tests}


def _entry_point(program: str, tests: str) -> str:
    """Return the function of `program` that the tests call; of several, the last defined."""
    try:
        functions = [node.name for node in ast.parse(program).body if isinstance(node, ast.FunctionDef)]
        called = {node.id for node in ast.walk(ast.parse(tests)) if isinstance(node, ast.Name)}
    except (SyntaxError, ValueError) as error:
        raise UnusableError(f"gold program or tests are not Python ({error})") from None
    tested = [name for name in functions if name in called]
    if not tested:
        raise UnusableError("the tests call no function of the gold program")
    return tested[-1]


def _list(record: Record, field: str) -> list[str]:
    value = record.get(field)
    value = _json(value) if isinstance(value, str) else value
    return [str(item) for item in value or []]


def _json(text: str) -> Any:
    try:
        return json.loads(text) if text.strip() else None
    except ValueError as error:  # also for a number of more digits than Python reads
        raise UnusableError(f"not JSON: {error}") from None


def _lines(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _unwrapped(expected: Any) -> Any:
    # APPS wraps what a function returns in a list of one
    return expected[0] if isinstance(expected, list) and len(expected) == 1 else expected
