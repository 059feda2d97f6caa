"""Task `reasoning_gym`: what its generators make; `metadata` is what the dataset's own scorer reads."""

from slipway.data.records import Problem, Record


def problem(record: Record) -> Problem:
    """Return the problem of a generated record; an answer that is no text becomes an empty one."""
    answer = record.get("answer")
    metadata = {key: record.get(key) for key in ("dataset", "parameters", "metadata")}
    return Problem(str(record.get("question")), answer if isinstance(answer, str) else "", metadata)
