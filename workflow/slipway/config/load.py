"""Read a config: every fault that can be told from the config alone, all at once.

A fault in one key does not hide the others: a section with faults is read again without the faulty keys, so that
what can still be checked is checked.
"""

import copy
import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from slipway.config import schema
from slipway.config.paths import RESERVED_RUN_NAMES
from slipway.errors import SlipwayError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
SECTIONS: dict[str, type[schema.Settings]] = {
    "models": schema.Model,
    "data": schema.Data,
    "evaluation": schema.Evaluation,
    "runs": schema.Run,
}

Section = TypeVar("Section", bound=schema.Settings)

_MERGE = "tag:yaml.org,2002:merge"  # of the key `<<`


@dataclass(frozen=True)
class Problem:
    """One fault: the dotted key, its value (None: not given), why it is one, and what would work."""

    key: str
    value: Any
    why: str
    remedy: str = ""

    def __str__(self) -> str:
        shown = "" if self.value is None else f" = {self.value!r}"
        return f"{self.key}{shown}: {self.why}" + (f" {self.remedy}" if self.remedy else "")


class ConfigError(SlipwayError):
    """The config cannot be used; `problems` lists every reason."""

    def __init__(self, problems: Iterable[Problem]):
        self.problems = list(problems)
        count = len(self.problems)
        head = f"the config has {count} problem{'s' if count > 1 else ''}:"
        super().__init__("\n  - ".join([head, *map(str, self.problems)]))


def load_config(*paths: Path) -> schema.Config:
    """Read YAML files, each overlaying those before it key by key, and check the result.

    Raises `ConfigError` with every problem found.
    """
    merged: dict[str, Any] = {}
    for path in paths:
        merged = overlay(merged, read_yaml(path))
    config, problems = check(merged)
    if config is None or problems:
        raise ConfigError(problems)
    return config


def named(entries: Mapping[str, Section], section: str, name: str) -> Section:
    """Return one entry of a section; raises `SlipwayError` with the names that there are."""
    if name not in entries:
        raise SlipwayError(f"the config has no {name!r} under `{section}`; there are: {', '.join(entries) or 'none'}")
    return entries[name]


def read_yaml(path: Path, expected: Iterable[str] = SECTIONS) -> dict[str, Any]:
    """Read one YAML file whose top level is a mapping; a key given twice is an error."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except FileNotFoundError:
        raise SlipwayError(f"{path}: no such config file") from None
    except OSError as error:
        raise SlipwayError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SlipwayError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except yaml.YAMLError as error:
        raise SlipwayError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(content, dict):
        raise SlipwayError(f"{path}: expected a mapping with the keys {', '.join(expected)}")
    return content


def overlay(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `top` laid over it, key by key; lists and single values are replaced whole."""
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        merged[key] = overlay(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def check(raw: Mapping[str, Any]) -> tuple[schema.Config | None, list[Problem]]:
    """Check a merged config; return what could be read of it, and every problem.

    An entry of a section that is null is left out: so an overlay removes what the file below it defines.
    """
    problems: list[Problem] = []
    for key, value in raw.items():
        if key not in SECTIONS:
            problems.append(unknown_key(str(key), value, SECTIONS))
    sections: dict[str, dict[str, Any]] = {}
    for name, kind in SECTIONS.items():
        sections[name] = _check_section(name, kind, raw.get(name), problems)
    config = schema.Config.model_construct(None, **sections)
    faulty = {problem.key for problem in problems}
    problems += _check_references(config, raw)
    for run in config.runs:
        problems += _check_checkpoints(run, config, faulty)
    return config, problems


def unknown_key(key: str, value: Any, known: Iterable[str]) -> Problem:
    """Return the problem of an unknown key, with the nearest known ones."""
    parent, _, last = key.rpartition(".")
    near = difflib.get_close_matches(last, list(known), n=2, cutoff=0.6)
    remedy = f"Did you mean {' or '.join(near)}?" if near else f"Known keys: {', '.join(sorted(known))}."
    return Problem(key, value, f"unknown key{f' of {parent}' if parent else ''}.", remedy)


def _check_section(
    name: str, kind: type[schema.Settings], entries: Any, problems: list[Problem]
) -> dict[str, schema.Settings]:
    if not isinstance(entries, Mapping) or not entries:
        problems.append(Problem(name, entries, "missing or empty; it must map names to settings."))
        return {}
    checked: dict[str, schema.Settings] = {}
    for entry, raw in entries.items():
        key = f"{name}.{entry}"
        if raw is None:
            continue
        if not isinstance(entry, str) or not NAME.fullmatch(entry):
            problems.append(
                Problem(key, None, "this name cannot be a folder's.", "Use letters, digits, '-', '_' and '.'.")
            )
            continue
        if name == "runs" and entry in RESERVED_RUN_NAMES:
            problems.append(
                Problem(key, None, f"no run may be called {entry!r}: results/{entry} is taken.", "Rename it.")
            )
            continue
        settings = _read_leniently(kind, key, raw, problems)
        if settings is not None:
            checked[entry] = settings
    return checked


def _read_leniently(kind: type[Section], key: str, raw: Any, problems: list[Problem]) -> Section | None:
    """Read `raw`, adding its faults to `problems`; then read what is left without the faulty keys."""
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        faults = [fault for fault in error.errors() if not _is_of_other_member(fault)]
    if not isinstance(raw, Mapping):
        problems.append(Problem(key, raw, "expected a mapping of settings."))
        return None
    for fault in faults:
        problems.append(_explain(kind, key, raw, fault))
    rest = _without(raw, [fault["loc"] for fault in faults])
    try:
        return kind.model_validate(rest)
    except ValidationError:
        return None


def _explain(kind: type[schema.Settings], key: str, raw: Any, fault: Any) -> Problem:
    location = [part for part in fault["loc"] if not _is_union_tag(part)]
    full = key + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    value = fault.get("input")
    match fault["type"]:
        case "extra_forbidden":
            return unknown_key(full, value, _fields_at(kind, [str(part) for part in location[:-1]]))
        case "missing":
            return Problem(full, None, "missing; it has no default.")
        case "model_type":
            return Problem(full, value, f"expected a mapping of settings, got {type(value).__name__}.")
        case "too_short" | "too_long":
            bound = "least" if fault["type"] == "too_short" else "most"
            count = fault["ctx"].get("min_length", fault["ctx"].get("max_length"))
            return Problem(full, value, f"the list has {len(value)} entries, expected at {bound} {count}.")
        case "string_too_short":
            return Problem(full, value, "expected text, got none.")
        case "value_error":
            return Problem(full, None, f"{fault['ctx']['error']}.")
        case _:
            wanted = fault["msg"].removeprefix("Input should be ")
            return Problem(full, value, f"expected {wanted}, got {type(value).__name__}.")


def _is_of_other_member(fault: Any) -> bool:
    """Tell the complaint of the union member that the value was not meant to be: `auto` against a layout."""
    tag = next((part for part in fault["loc"] if _is_union_tag(part)), None)
    if tag is None:
        return False
    return isinstance(fault["input"], Mapping) if tag != "Parallel" else fault["type"] == "model_type"


def _is_union_tag(part: Any) -> bool:
    # pydantic names the members of a union in the location: Parallel, literal['auto']
    return part == "Parallel" or (isinstance(part, str) and part.startswith("literal["))


def _fields_at(kind: type[schema.Settings], location: list[str]) -> list[str]:
    nested: dict[str, type[schema.Settings]] = {
        "grpo": schema.Grpo,
        "parallel": schema.Parallel,
        "demo": schema.DemoModel,
        "sources": schema.Source,
        "filters": schema.Filters,
        "max_prompt_length": schema.MaxPromptLength,
        "near_duplicates": schema.NearDuplicates,
        "decontaminate": schema.Decontaminate,
        "pass_rate": schema.PassRate,
        "reward": schema.Reward,
        "length": schema.LengthPenalty,
        "custom": schema.CustomReward,
        "code": schema.CodeLimits,
        "checkpoints": schema.Checkpoints,
    }
    for part in location:
        kind = nested.get(part, kind)
    return list(kind.model_fields)


def _without(raw: Mapping[str, Any], locations: list[tuple[Any, ...]]) -> dict[str, Any]:
    rest: dict[str, Any] = copy.deepcopy(dict(raw))
    for location in locations:
        keys = [part for part in location if not _is_union_tag(part)]
        inner: Any = rest
        for part in keys[:-1]:
            inner = inner.get(part) if isinstance(inner, dict) else None
        if isinstance(inner, dict) and keys:
            inner.pop(keys[-1], None)
    return rest


def _check_references(config: schema.Config, raw: Mapping[str, Any]) -> list[Problem]:
    problems = []

    def check_name(key: str, name: str, section: str) -> None:
        # an entry that is there but faulty has been reported already
        entries = raw.get(section)
        if not isinstance(entries, Mapping):
            return  # reported already
        known = [str(entry) for entry, value in entries.items() if value is not None]
        if name not in known:
            near = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
            remedy = f"Did you mean {' or '.join(near)}?" if near else f"There are: {', '.join(known) or 'none'}."
            problems.append(Problem(key, name, f"no such entry under `{section}`.", remedy))

    for name, model in config.models.items():
        if model.demo is not None:
            check_name(f"models.{name}.demo.data", model.demo.data, "data")
            data = config.data.get(model.demo.data)
            if data is not None and data.warmup == 0:
                problems.append(
                    Problem(
                        f"data.{model.demo.data}.warmup",
                        0,
                        f"models.{name}.demo needs problems to warm start on.",
                        "Set it to some thousands.",
                    )
                )
        elif model.path is not None:
            problems += _check_model_path(f"models.{name}.path", model.path)
    for name, data_set in config.data.items():
        for index, other in enumerate(data_set.filters.decontaminate.ignore):
            check_name(f"data.{name}.filters.decontaminate.ignore[{index}]", other, "data")
        limit = data_set.filters.max_prompt_length
        if limit is not None:
            key = f"data.{name}.filters.max_prompt_length.model"
            check_name(key, limit.model, "models")
            measured_by = config.models.get(limit.model)
            if measured_by is not None and measured_by.demo is not None:
                why = "a demo model's tokenizer is made from data, so it cannot measure them before."
                problems.append(Problem(key, limit.model, why, "Name a model with a `path`, or leave the filter out."))
    for name, evaluation in config.evaluation.items():
        check_name(f"evaluation.{name}.data", evaluation.data, "data")
        data = config.data.get(evaluation.data)
        if data is not None:
            problems += _check_questions(name, evaluation, data.heldout)
    for name, run in config.runs.items():
        check_name(f"runs.{name}.model", run.model, "models")
        check_name(f"runs.{name}.data", run.data, "data")
        trained_on = config.data.get(run.data)
        if trained_on is not None and trained_on.train == 0:
            problems.append(
                Problem(f"data.{run.data}.train", 0, f"runs.{name} trains on it.", "Give the number of problems.")
            )
        for index, evaluation_name in enumerate(run.evaluation):
            key = f"runs.{name}.evaluation[{index}]"
            if evaluation_name not in run.evaluation[:index]:
                check_name(key, evaluation_name, "evaluation")
            else:
                why = "is named twice, and would count twice where p is corrected for the number of evaluations."
                problems.append(Problem(key, evaluation_name, why, "Leave one out."))
    return problems


def _check_questions(name: str, evaluation: schema.Evaluation, heldout: int) -> list[Problem]:
    held_out = f"data.{evaluation.data} holds out only {heldout} questions"
    left = heldout - evaluation.skip_questions
    if left < 1:
        key, remedy = f"evaluation.{name}.skip_questions", f"Use less than {heldout}, or raise heldout."
        return [Problem(key, evaluation.skip_questions, f"{held_out}, so none is left.", remedy)]
    if evaluation.questions is not None and evaluation.questions > left:
        skipped = f", of which {evaluation.skip_questions} are skipped" if evaluation.skip_questions else ""
        remedy = f"Use at most {left}, or null for all{' the rest' if skipped else ''}."
        return [Problem(f"evaluation.{name}.questions", evaluation.questions, f"{held_out}{skipped}.", remedy)]
    return []


def _check_checkpoints(name: str, config: schema.Config, faulty: set[str]) -> list[Problem]:
    """Check which checkpoints a run evaluates; `faulty` are the keys whose values are defaults, being wrong."""
    run = config.runs[name]
    if run.checkpoints is None:
        return []
    problems = []
    key, every = f"runs.{name}.checkpoints.evaluate_every", run.checkpoints.evaluate_every
    if every >= run.steps:
        why = f"there is no such step before the last one, {run.steps}, which is evaluated anyway."
        problems.append(Problem(key, every, why, f"Use less than {run.steps}, or leave `checkpoints` out."))
    elif every % run.save_every and f"runs.{name}.save_every" not in faulty:
        why = f"the run saves every {run.save_every} steps, so there is no checkpoint of step {every}."
        remedy = f"Use a multiple of {run.save_every}, or save_every: {math.gcd(every, run.save_every)}."
        problems.append(Problem(key, every, why, remedy))
    if run.select_on is not None:
        problems += _check_selection(name, run, run.select_on, config)
    return problems


def _check_selection(name: str, run: schema.Run, select_on: str, config: schema.Config) -> list[Problem]:
    """Check that what chooses a checkpoint is evaluated, and that the choice is judged on other questions."""
    key, others = f"runs.{name}.checkpoints.select_on", run.reported_evaluations
    listed = ", ".join(run.evaluation)
    if select_on not in run.evaluation:
        near = difflib.get_close_matches(select_on, run.evaluation, n=1, cutoff=0.5)
        remedy = f"Did you mean {near[0]}?" if near else f"Name one of them, or add it to runs.{name}.evaluation."
        return [Problem(key, select_on, f"is not among the run's evaluations, {listed}.", remedy)]
    if select_on == run.evaluation[0]:
        why = "is the run's first evaluation, which decides the verdict; questions that chose a checkpoint flatter it."
        remedy = (
            f"Put another one first: evaluation: [{', '.join([*others, select_on])}]."
            if others
            else "Split the held-out questions into two evaluations (skip_questions), the one that decides first."
        )
        return [Problem(key, select_on, why, remedy)]
    chooses = config.evaluation.get(select_on)
    problems = []
    for other in others:
        reported = config.evaluation.get(other)
        if chooses is None or reported is None or chooses.data != reported.data or chooses.data not in config.data:
            continue
        heldout = config.data[chooses.data].heldout
        mine, its = _asked(chooses, heldout), _asked(reported, heldout)
        common = min(mine.stop, its.stop) - max(mine.start, its.start)
        if common > 0:
            why = f"{common} of its questions are also those of evaluation.{other}, which reports on what it chooses."
            remedy = _apart(select_on, chooses, mine, other, reported, heldout)
            problems.append(Problem(key, select_on, why, remedy))
    return problems


def _apart(
    select_on: str, chooses: schema.Evaluation, mine: range, other: str, reported: schema.Evaluation, heldout: int
) -> str:
    """Return how two evaluations of one data set come to ask different questions; `mine` are those that choose."""
    whole = ", questions: null" if reported.questions is not None else ""
    if mine.start == 0 and mine.stop < heldout:
        return f"Let evaluation.{other} have skip_questions: {mine.stop}{whole}."
    half = heldout // 2
    if half == 0:
        return f"Raise data.{chooses.data}.heldout, which is {heldout}: it cannot be split."
    none = "skip_questions: 0, " if chooses.skip_questions else ""
    return (
        f"Split them: evaluation.{select_on} with {none}questions: {half}, evaluation.{other} with "
        f"skip_questions: {half}{whole}."
    )


def _asked(evaluation: schema.Evaluation, heldout: int) -> range:
    """Return which of a data set's held-out questions an evaluation asks."""
    start = evaluation.skip_questions
    return range(start, heldout if evaluation.questions is None else start + evaluation.questions)


def _check_model_path(key: str, path: str) -> list[Problem]:
    folder = Path(path).expanduser()
    looks_like_hub_name = path.count("/") == 1 and not path.startswith((".", "/", "~"))
    if looks_like_hub_name and not folder.exists():
        return []
    if not folder.is_dir():
        return [Problem(key, path, "no such folder, and not a hub name (owner/model).", "Give one of the two.")]
    if not (folder / "config.json").is_file():
        return [Problem(key, path, "the folder has no config.json.", "Give a Hugging Face checkpoint.")]
    return []


class _StrictLoader(yaml.CSafeLoader):
    """PyYAML's safe loader in C, but a key given twice is an error instead of the last one winning.

    In Python it takes three seconds for a sweep of 1,000 runs.
    """

    def construct_document(self, node: yaml.Node) -> Any:
        # before constructing: that puts the entries of `<<: *base` among the mapping's own, which may override them
        self._refuse_keys_given_twice(node, set())
        return super().construct_document(node)

    def _refuse_keys_given_twice(self, node: yaml.Node, checked: set[yaml.Node]) -> None:
        if node in checked or isinstance(node, yaml.ScalarNode):
            return
        checked.add(node)
        seen = set()
        for child in node.value:
            if isinstance(node, yaml.MappingNode):
                key_node, child = child
                if isinstance(key_node, yaml.ScalarNode) and key_node.tag != _MERGE:
                    key = self.construct_object(key_node)  # type: ignore[no-untyped-call]
                    if key in seen:
                        raise yaml.constructor.ConstructorError(
                            None, None, f"the key {key!r} is given twice", key_node.start_mark
                        )
                    seen.add(key)
            self._refuse_keys_given_twice(child, checked)
