"""Task `math`: a question, and an answer that is plain, ends after `####` (GSM8K), or is in \\boxed{} (MATH).

Fields: `question` (or `problem`), and `answer` (or `solution`).
"""

from slipway.data.records import Problem, Record, UnusableError

MARK = "####"
BOXED = ("\\boxed", "\\fbox")


def problem(record: Record) -> Problem:
    """Return the problem; a solution that leads to the answer becomes its demonstration."""
    question = record.text("question" if record.has("question") or not record.has("problem") else "problem")
    text = record.text("answer" if record.has("answer") or not record.has("solution") else "solution").strip()
    reasoning, mark, marked = text.rpartition(MARK)
    # more than a line is no answer: a heading of a solution in Markdown begins with the same mark
    if mark and "\n" not in marked.strip():
        return _problem(question, marked, reasoning)
    if any(command in text for command in BOXED):
        answer = last_boxed(text)
        return _problem(question, answer, "" if answer == text else text)
    demonstration = record.text("solution") if record.has("solution") else ""
    return _problem(question, text, demonstration)


def last_boxed(text: str) -> str:
    """Return what the last \\boxed{...} or \\fbox{...} holds, its braces matched."""
    start = max(text.rfind(command) for command in BOXED)
    rest = text[start:].lstrip("\\").removeprefix("boxed").removeprefix("fbox").lstrip()
    if not rest.startswith("{"):
        # TeX takes a single token too: \boxed 5
        token = rest.split("$")[0].split()
        if not token:
            raise UnusableError("nothing in \\boxed")
        return token[0]
    depth = 0
    for index, letter in enumerate(rest):
        if rest[index - 1 : index] == "\\":
            continue
        depth += (letter == "{") - (letter == "}")
        if depth == 0:
            return rest[1:index].strip()
    raise UnusableError("the braces of \\boxed do not match")


def _problem(question: str, answer: str, demonstration: str) -> Problem:
    return Problem(question, answer.strip(), {}, demonstration.strip() or None)
