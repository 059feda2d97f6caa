"""From a config to what each run will do: where the rooms are put together for the Snakefile and the scripts.

Needs neither torch nor verl's import: `snakemake -n` shows every fault in about two seconds.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway.config import verl
from slipway.config.identity import changed_since_start, next_name
from slipway.config.load import ConfigError, Problem, check, named, read_yaml
from slipway.config.paths import ResultPaths, name_of_step
from slipway.config.schema import Config, Data, Model, Parallel, Run
from slipway.config.source_paths import source_path
from slipway.config.validation import validation_settings
from slipway.cpu import environment as cpu_environment
from slipway.errors import SlipwayError
from slipway.launch import VERL_SETTINGS, checkpoints
from slipway.launch.started import read_started
from slipway.manifest import RECORD, fingerprint, read_manifest, write_if_changed, write_text
from slipway.models.architecture import Architecture, architecture_from_config, read_architecture
from slipway.models.demo_dimensions import DEMO_MAX_POSITIONS, DEMO_VOCAB_SIZE
from slipway.models.known import find_folder
from slipway.models.parameters import stored_parameters
from slipway.models.source import is_hub_name
from slipway.preflight.auto_layout import fastest_layout, layout_on_cpu
from slipway.preflight.auto_micro_batch import largest_micro_batches, least_micro_batches, micro_batches_on_cpu
from slipway.preflight.findings import Finding, Severity, errors
from slipway.preflight.static import check_run
from slipway.preflight.subject import Subject, subject_of_run

if TYPE_CHECKING:
    from slipway.data import Surroundings


@dataclass(frozen=True)
class ResolvedRun:
    """A run with everything decided: its layout, and the complete verl config."""

    name: str
    run: Run
    parallel: Parallel
    verl: verl.VerlConfig
    findings: tuple[Finding, ...]
    """What preflight's rules have to say that is no error."""


@dataclass(frozen=True)
class Plan:
    """A config that has passed every static check, and its runs."""

    config: Config
    paths: ResultPaths
    runs: Mapping[str, ResolvedRun]

    def resolved(self, run: str) -> ResolvedRun:
        """Return one run; raises `SlipwayError` when the config has none of that name."""
        named(self.config.runs, "runs", run)
        return self.runs[run]

    def write_verl_configs(self) -> None:
        """Write `results/<run>/verl.yaml` of every run whose content has changed."""
        for name in self.runs:
            self.write_verl_config(name)

    def write_verl_config(self, run: str) -> None:
        """Write that of one run."""
        write_if_changed(self.paths.verl_config(run), self.resolved(run).verl.text())


def plan_from_file(config_file: Path, results: Path) -> Plan:
    """Read one config file and resolve its runs."""
    return plan(read_yaml(config_file), results)


def plan(raw: Mapping[str, Any], results: Path) -> Plan:
    """Check a merged config and resolve its runs; raises `ConfigError` with every problem of every run."""
    config, problems = check(raw)
    paths = ResultPaths(results)
    if config is None:
        raise ConfigError(problems)
    problems += _check_data(config, paths) + _check_weights(config)
    runs = {}
    for name, run in config.runs.items():
        if run.model not in config.models or run.data not in config.data or config.data[run.data].train == 0:
            continue  # reported by check
        resolved, faults = _resolve_run(name, run, config, paths)
        problems += faults
        if resolved is not None:
            runs[name] = resolved
    if problems:
        # a fault of what several runs share is found with each of them
        raise ConfigError({str(problem): problem for problem in problems}.values())
    return Plan(config, paths, runs)


def model_folder(name: str, model: Model, paths: ResultPaths) -> Path:
    """Return where a model's Hugging Face files are, or will be once a rule has made or fetched them."""
    if model.path is not None and (folder := Path(model.path).expanduser()).is_dir():
        return folder
    return paths.hf_model(name)


def architecture_of(name: str, model: Model, paths: ResultPaths) -> Architecture | None:
    """Return a model's dimensions as far as they are known: from its config.json or its recipe."""
    if model.path is not None:
        # one that is still to be fetched from its hub may ship its dimensions
        folders = (model_folder(name, model, paths), find_folder(model.path))
        known = (folder for folder in folders if folder is not None and (folder / "config.json").is_file())
        return read_architecture(folder) if (folder := next(known, None)) is not None else None
    recipe = model.demo
    assert recipe is not None  # the schema asks for one of the two
    return architecture_from_config(
        {
            "architectures": ["Qwen2ForCausalLM"],
            "num_hidden_layers": recipe.layers,
            "hidden_size": recipe.hidden_size,
            "num_attention_heads": recipe.heads,
            "num_key_value_heads": recipe.kv_heads,
            "intermediate_size": recipe.intermediate_size,
            "vocab_size": DEMO_VOCAB_SIZE,
            "max_position_embeddings": DEMO_MAX_POSITIONS,
        },
        f"models.{name}.demo",
    )


def evaluation_sets(name: str, config: Config) -> list[str]:
    """Return the other data sets that `data.<name>` is decontaminated against: all that are evaluated on."""
    data = config.data[name]
    if not data.decontaminates:
        return []
    evaluated = {evaluation.data for evaluation in config.evaluation.values()}
    return sorted(evaluated - {name, *data.filters.decontaminate.ignore})


def surroundings_of_data(name: str, config: Config, paths: ResultPaths, processes: int) -> "Surroundings":
    """Return what a data set is made with besides its settings; a hub model whose tokenizer measures is fetched."""
    from slipway.data import Surroundings  # imports datasets, which the main process does not need
    from slipway.models.source import local_folder

    limit = config.data[name].filters.max_prompt_length
    return Surroundings(
        name=name,
        processes=processes,
        tokenizer=local_folder(config.models[limit.model], limit.model, paths) if limit else None,
        heldout={other: paths.held_out(other) for other in evaluation_sets(name, config)},
    )


def data_sources(name: str, config: Config) -> list[Path]:
    """Return the local files and folders that `data.<name>` is made from besides its settings."""
    data = config.data[name]
    filters = data.filters
    paths = [source_path(source.path) for source in data.sources if source.path]
    given = [*filters.decontaminate.against, *([filters.pass_rate.file] if filters.pass_rate else [])]
    return [path for path in (*paths, *(Path(item).expanduser() for item in given)) if path.exists()]


def device_environment(run: Run) -> dict[str, str]:
    """Return what a training job needs in its environment on the run's device."""
    return cpu_environment.environment(run.gpus_per_node) if run.device == "cpu" else {}


def ray_node_options(run: Run) -> dict[str, int]:
    """Return what Ray is to be told of a node's resources on the run's device; nothing where it sees them."""
    return cpu_environment.ray_node_options(run.gpus_per_node) if run.device == "cpu" else {}


def subject_to_judge(name: str, run: Run, data: Data, resolved: verl.VerlConfig, model: Architecture | None) -> Subject:
    """Return what preflight's rules judge a run by."""
    on_cpu = run.device == "cpu"
    return subject_of_run(
        name,
        resolved.flat(),
        model,
        data.train,
        (cpu_environment.ROLLOUT_NAME,) if on_cpu else (),
        None if on_cpu else run.gpu_memory_gib * 2**30,
    )


def _check_data(config: Config, paths: ResultPaths) -> list[Problem]:
    """Look for the files that sources name, and ask reasoning-gym about the settings of data still to be made.

    The import of reasoning-gym takes seconds, so what it has accepted is remembered.
    """
    problems = []
    for name, data in config.data.items():
        for index, source in enumerate(data.sources):
            if source.path is not None:
                made = _is_made_from(data, paths.data(name) / "manifest.json")
                problems += _check_source_path(f"data.{name}.sources[{index}].path", source.path, made)
            if source.dataset is None:
                continue
            asked = {"version": version("reasoning-gym"), "dataset": source.dataset, "parameters": source.parameters}
            accepted = paths.accepted_data / fingerprint(asked)
            if accepted.exists() or _is_made_from(data, paths.data(name) / "manifest.json"):
                continue
            from slipway.data.sources.generated import check_settings

            try:
                check_settings(source.dataset, source.parameters)
            except SlipwayError as error:
                problems.append(Problem(f"data.{name}.sources[{index}]", None, str(error)))
            else:
                write_text(accepted, "")
    return problems


def _check_source_path(key: str, path: str, made: bool) -> list[Problem]:
    try:
        found = source_path(path)
    except SlipwayError as error:
        return [Problem(key, None, str(error))]
    if made or found.exists() or is_hub_name(path):
        return []
    return [Problem(key, path, "no such file or folder, and not a hub name (owner/dataset).", "Give one of the three.")]


def _is_made_from(data: Data, manifest: Path) -> bool:
    try:
        return bool(read_manifest(manifest, "prepare_data").inputs["settings"] == data.model_dump(mode="json"))
    except (SlipwayError, KeyError, TypeError):
        return False


def _check_weights(config: Config) -> list[Problem]:
    """Compare the weight files of the user's models with their config.json; reads the files' headers alone."""
    problems = []
    for name, model in config.models.items():
        if model.path is None or not (folder := Path(model.path).expanduser()).is_dir():
            continue
        try:
            stored_parameters(folder, read_architecture(folder))
        except SlipwayError as error:
            problems.append(Problem(f"models.{name}", model.path, str(error)))
    return problems


def _resolve_run(name: str, run: Run, config: Config, paths: ResultPaths) -> tuple[ResolvedRun | None, list[Problem]]:
    try:
        model = architecture_of(run.model, config.models[run.model], paths)
    except SlipwayError as error:
        return None, [Problem(f"models.{run.model}", config.models[run.model].path, str(error))]
    try:
        started = _started(paths, name)
    except SlipwayError as error:
        return None, [Problem(f"runs.{name}", None, str(error))]
    files = verl.RunFiles(
        model=model_folder(run.model, config.models[run.model], paths),
        megatron=paths.megatron_model(run.model) / "checkpoint",
        train=paths.data(run.data) / "train.parquet",
        heldout=paths.data(run.data) / "heldout.parquet",
        checkpoints=paths.checkpoints(name),
    )
    data = config.data[run.data]
    # makes verl's Megatron model compute what the model was made for
    corrections = {} if model is None else verl.transformer_overrides(model.corrections)

    def settle(parallel: Parallel, micro_batches: verl.MicroBatches) -> _Settled:
        settings = _device_settings(run, parallel) | corrections | validation_settings(run, config.evaluation)
        return verl.resolve(name, run, data, parallel, micro_batches, files, settings, paths.composed)

    parallel, problems = _layout(name, run, data, model, started, settle)
    if parallel is None:
        return None, problems
    micro_batches, problems = _micro_batches(name, run, data, model, parallel, started, settle)
    if micro_batches is None:
        return None, problems
    resolved, problems = settle(parallel, micro_batches)
    if resolved is None:
        return None, problems
    subject = subject_to_judge(name, run, data, resolved, model)
    findings = check_run(name, run, subject)
    if model is None:
        path = config.models[run.model].path
        why = "its dimensions are not known before it is fetched: layout and memory are judged then."
        findings.append(Finding("S22", Severity.NOTE, f"models.{run.model}", path, why))
    problems += [finding.as_problem() for finding in errors(findings)]
    if started is not None and not problems:
        problems += changed_since_start(name, started, resolved.plain())
        problems += _fewer_steps(name, run, paths)
    problems += _gone_checkpoints(name, run, paths)
    if model is not None:
        problems += _too_long_answers(run, config, model)
    return ResolvedRun(name, run, parallel, resolved, tuple(findings)), problems


_Settled = tuple[verl.VerlConfig | None, list[Problem]]
_Settle = Callable[[Parallel, verl.MicroBatches], _Settled]


def _layout(
    name: str,
    run: Run,
    data: Data,
    model: Architecture | None,
    started: Mapping[str, Any] | None,
    settle: _Settle,
) -> tuple[Parallel | None, list[Problem]]:
    """Decide the layout; `settle` makes a verl config of a layout and micro batches."""
    if isinstance(run.parallel, Parallel):
        return run.parallel, []
    if started is not None:
        # frozen: another choice, made by a later version or for another machine, would not fit the checkpoint
        return _layout_of_identity(started), []
    try:
        if run.device == "cpu":
            return layout_on_cpu(run.nodes, run.gpus_per_node, model), []
        # the forecast looks at lengths, batches and switches, which no layout changes
        resolved, problems = settle(Parallel(), _given_micro_batches(run) or least_micro_batches(run.grpo))
        if resolved is None:
            return None, problems
        return fastest_layout(subject_to_judge(name, run, data, resolved, model)), []
    except SlipwayError as error:
        where = f"{run.nodes} node(s) x {run.gpus_per_node} GPUs of {run.gpu_memory_gib:g} GiB"
        remedy = "Use more or larger GPUs, smaller micro batches, offload under `verl:`, or give an explicit layout."
        return None, [Problem(f"runs.{name}.parallel", "auto", f"on {where}, {error}.", remedy)]


def _micro_batches(
    name: str,
    run: Run,
    data: Data,
    model: Architecture | None,
    parallel: Parallel,
    started: Mapping[str, Any] | None,
    settle: _Settle,
) -> tuple[verl.MicroBatches | None, list[Problem]]:
    """Decide how large a pass is, for a layout."""
    given = _given_micro_batches(run)
    if given is not None:
        return given, []
    if started is not None:  # frozen, as the layout is
        return verl.micro_batches_of(started), []
    if run.device == "cpu":
        ranks = parallel.tensor * parallel.pipeline * parallel.context
        return micro_batches_on_cpu(run.grpo, max(1, run.nodes * run.gpus_per_node // ranks)), []
    least = least_micro_batches(run.grpo)
    resolved, problems = settle(parallel, least)
    if resolved is None:
        return None, problems
    return largest_micro_batches(subject_to_judge(name, run, data, resolved, model)) or least, []


def _given_micro_batches(run: Run) -> verl.MicroBatches | None:
    size = run.grpo.micro_batch_size
    return None if size == "auto" else verl.MicroBatches(size, run.grpo.log_prob_micro_batch_size or size)


def _layout_of_identity(identity: Mapping[str, Any]) -> Parallel:
    values = {
        setting.removeprefix("parallel."): identity[key]
        for key, setting in verl.OWNED.items()
        if setting.startswith("parallel.") and identity.get(key) is not None
    }
    return Parallel(**values)


def _device_settings(run: Run, parallel: Parallel) -> dict[str, Any]:
    settings = dict(VERL_SETTINGS)
    if run.device == "cpu":
        return settings | cpu_environment.overrides(run.gpus_per_node)
    settings[f"{verl.ROLLOUT}.name"] = "vllm"
    if parallel.rollout_tensor == 1:
        # verl has vLLM start one more process for the one GPU of an engine, which imports all of it once more
        settings[verl.VLLM_EXECUTOR] = "uni"
    settings[verl.SEQUENCES_AT_ONCE] = _sequences_at_once(run, parallel)
    # verl starts eight of each on any machine: two dozen processes that import torch at once, for one GPU's answers
    gpus = run.nodes * run.gpus_per_node
    settings[verl.AGENT_WORKERS] = min(4 * gpus, 8)
    settings[verl.REWARD_WORKERS] = min(4 * gpus, 8)
    settings[verl.STORAGE_UNITS] = min(2 * gpus, 8)
    return settings


def _sequences_at_once(run: Run, parallel: Parallel) -> int:
    """Return how many responses an engine is to generate at once: all of its share of a step, within limits.

    verl says 256 for any batch: an engine that is given 512 generates them in two rounds, each as long as its longest
    response. 1,024 is what vLLM's own server takes on a large GPU.
    """
    engines = max(1, run.nodes * run.gpus_per_node // parallel.rollout_tensor)
    responses = run.grpo.prompts_per_step * run.grpo.samples_per_prompt
    return min(max(math.ceil(responses / engines), 256), 1024)


def _started(paths: ResultPaths, run: str) -> Mapping[str, Any] | None:
    """Return the identity that a run has checkpoints of, or None."""
    if checkpoints.latest_step(paths.checkpoints(run)) == 0:
        return None
    started = read_started(paths.train(run))
    return None if started is None else started.identity


def _fewer_steps(name: str, run: Run, paths: ResultPaths) -> list[Problem]:
    trained = checkpoints.latest_step(paths.checkpoints(name))
    if run.steps >= trained:
        return []
    return [
        Problem(
            f"runs.{name}.steps",
            run.steps,
            f"the run has been trained for {trained} steps already.",
            f"Steps can be raised, not lowered: use {trained} or more, or another run name.",
        )
    ]


def _too_long_answers(run: Run, config: Config, model: Architecture) -> list[Problem]:
    """Tell of evaluations whose answers no prompt leaves room for; lengths of training are for preflight's rules."""
    lengths = {
        name: config.evaluation[name].max_response_length for name in run.evaluation if name in config.evaluation
    }
    return [
        Problem(
            f"evaluation.{name}.max_response_length",
            length,
            f"models.{run.model} has {model.max_positions} positions for prompt and answer together.",
            f"Leave room for the longest prompt, or use null: the run's {run.grpo.max_response_length}.",
        )
        for name, length in lengths.items()
        if length is not None and length >= model.max_positions
    ]


def _gone_checkpoints(name: str, run: Run, paths: ResultPaths) -> list[Problem]:
    """Tell of checkpoints to evaluate that the training has passed and did not keep, unless they are exported."""
    saved = checkpoints.saved_steps(paths.checkpoints(name))
    exported = [
        step for step in run.evaluated_steps if (paths.trained_model(name, name_of_step(step)) / RECORD).is_file()
    ]
    usable = {*saved, *exported}
    trained = max(saved, default=0)
    gone = [step for step in run.evaluated_steps if step <= trained and step not in usable]
    if run.checkpoints is None or not gone:
        return []
    whole = [
        every
        for every in range(run.save_every, run.steps, run.save_every)
        if all(step in usable for step in range(every, min(run.steps, trained + 1), every))
    ]
    return [
        Problem(
            f"runs.{name}.checkpoints.evaluate_every",
            run.checkpoints.evaluate_every,
            f"the run has been trained for {trained} steps and has not kept the checkpoints of {_listed(gone)}; there "
            f"are: {_listed(sorted(usable))}.",
            (f"Use {whole[0]}, of whose steps none is missing, or leave" if whole else "Leave")
            + f" `checkpoints` out, or train anew under another name (e.g. {next_name(name)}): it keeps them.",
        )
    ]


def _listed(steps: list[int]) -> str:
    """Return steps in words, of many the first ones."""
    shown = ", ".join(map(str, steps[:10]))
    return f"step{'s' if len(steps) > 1 else ''} {shown}{' and more' if len(steps) > 10 else ''}"
