"""Every key a user may set, with its type, unit, range and default.

The JSON schema in `workflow/schemas/config.schema.json` is generated from these models; `config.yaml` shows them in
use. Keys are strict: unknown ones are refused, and nothing is converted from one type to another except numbers
like `1e-6`, which YAML 1.1 reads as text.
"""

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

_EXPONENT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+")


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


_FILE_ENDING = re.compile(r"\.(jsonl|csv)(\.gz|\.bz2|\.xz)?$|\.parquet$")

# No count of a training comes near it, and numpy and torch take seeds below it.
_LARGEST = 2**31 - 1

Task = Literal["reasoning_gym", "math", "multiple_choice", "code"]

# What each task reads of a record, so what `columns` may name: see `slipway.data.tasks`, one module a task.
FIELDS: Mapping[str, tuple[str, ...]] = {
    "math": ("question", "problem", "answer", "solution"),
    "multiple_choice": ("question", "choices", "answer"),
    "code": (
        *("prompt", "canonical_solution", "test", "entry_point"),  # HumanEval
        *("text", "code", "test_list", "test_setup_code"),  # MBPP
        *("question", "solutions", "input_output", "starter_code"),  # APPS
    ),
}
# Of every task: what a problem is called in figures by group.
LABELS = ("difficulty", "category")

Real = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Positive = Annotated[int, Field(ge=1, le=_LARGEST)]
NotNegative = Annotated[int, Field(ge=0, le=_LARGEST)]


class Settings(BaseModel):
    """Base of all sections: unknown keys and loose types are errors, values never change after reading."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class DemoModel(Settings):
    """A small Qwen2-architecture model that rule `make_demo_model` makes and warm-starts on the CPU."""

    data: str = Field(description="name under `data` whose warm-up split the model is trained on before GRPO")
    hidden_size: Positive = Field(128, description="width of the residual stream")
    layers: Positive = Field(4, description="transformer layers")
    heads: Positive = Field(4, description="attention heads")
    kv_heads: Positive = Field(2, description="key/value heads (grouped-query attention)")
    intermediate_size: Positive = Field(512, description="width of the gated feed-forward layer")
    steps: Positive = Field(600, description="optimizer steps of the supervised warm start")
    batch_size: Positive = Field(64, description="problems per optimizer step of the warm start")
    learning_rate: Annotated[Real, Field(gt=0, le=1)] = Field(1e-3, description="peak of the warm start")
    tagged_share: Annotated[Real, Field(ge=0, le=1)] = Field(
        1.0,
        description="share of warm-up answers shown in <answer> tags; the others are shown as a sentence, which "
        "scores nothing: a habit for GRPO to unlearn",
    )
    seed: NotNegative = Field(0, description="seed of initial weights and of the order of problems")


class Model(Settings):
    """A model to train: exactly one of `path` and `demo`."""

    path: str | None = Field(
        None,
        min_length=1,
        description="folder with a Hugging Face checkpoint, or a hub name such as Qwen/Qwen3-8B",
    )
    revision: str | None = Field(None, description="commit, tag or branch of a hub model; null: its default branch")
    demo: DemoModel | None = Field(None, description="recipe of a model that Slipway makes itself")

    @model_validator(mode="after")
    def _one_source(self) -> "Model":
        if (self.path is None) == (self.demo is None):
            raise ValueError("give exactly one of `path` (a folder or hub name) and `demo` (a recipe)")
        if self.revision is not None and self.path is None:
            raise ValueError("`revision` belongs to a hub model: give `path` too")
        return self


class LengthPenalty(Settings):
    """A soft limit of length: 0 up to `from_characters`, falling evenly to -1 at `to_characters` and beyond."""

    weight: Annotated[Real, Field(gt=0)] = Field(1.0, description="what a response that is far too long loses")
    from_characters: NotNegative = Field(description="longest response, in characters, that loses nothing")
    to_characters: Positive = Field(description="length, in characters, from which the whole weight is lost")

    @model_validator(mode="after")
    def _falls(self) -> "LengthPenalty":
        if self.to_characters <= self.from_characters:
            raise ValueError(
                f"to_characters: {self.to_characters} must be above from_characters: {self.from_characters}"
            )
        return self


class CustomReward(Settings):
    """A function of the user's: `def name(response: str, answer: str, entry: dict) -> float`."""

    function: str = Field(description="path.py:function, the path as seen from the folder of the Snakefile")
    weight: Real = Field(1.0, description="its share of the composite reward")

    @field_validator("function")
    @classmethod
    def _names_a_function(cls, value: str) -> str:
        path, _, name = value.rpartition(":")
        if not path.endswith(".py") or not name.isidentifier():
            raise ValueError("is not of the form path.py:function")
        return value


class CodeLimits(Settings):
    """What a model-written program may use in the sandbox."""

    seconds: Annotated[Real, Field(gt=0, le=600)] = Field(
        5.0, description="CPU time of a program; after three times that it is killed"
    )
    memory_mib: Annotated[int, Field(ge=64, le=_LARGEST)] = Field(512, description="address space, MiB")
    processes: Annotated[int, Field(ge=1, le=4096)] = Field(16, description="processes and threads at a time")
    file_mib: Annotated[int, Field(ge=1, le=_LARGEST)] = Field(16, description="all files it writes together, MiB")
    output_kib: Annotated[int, Field(ge=1, le=_LARGEST)] = Field(256, description="output that is read, KiB")


class Reward(Settings):
    """What a response earns: the weighted sum of components, each logged by itself."""

    correctness: Real = Field(1.0, description="weight of the task's own score, 0 to 1")
    format: Real = Field(0.0, description="weight of 1 for an answer in the asked form")
    syntax: Real = Field(0.0, description="code: weight of 1 for a program that compiles")
    style: Real = Field(0.0, description="code: weight of 1 less the linter's findings a line")
    length: LengthPenalty | None = Field(None, description="penalty of long responses")
    custom: CustomReward | None = Field(None, description="a function of yours")
    clip: Annotated[list[Real], Field(min_length=2, max_length=2)] | None = Field(
        None, description="[lowest, highest] sum; null: as it is"
    )
    math_seconds: Annotated[Real, Field(gt=0, le=600)] = Field(
        5.0, description="math: time to compare two answers; what takes longer is wrong"
    )
    code: CodeLimits = Field(default_factory=CodeLimits, description="code: limits of the sandbox")
    run_code_without_sandbox: bool = Field(
        False, description="DANGER: run model-written programs with all your rights where there is no sandbox"
    )

    @model_validator(mode="after")
    def _can_be_earned(self) -> "Reward":
        if self.correctness == self.format == self.syntax == self.style == 0 and self.custom is None:
            raise ValueError("every weight is 0, so all responses earn the same: set `correctness` above 0")
        if self.clip is not None and self.clip[0] >= self.clip[1]:
            raise ValueError(f"clip: {self.clip} must be [lowest, highest]")
        return self


class Source(Settings):
    """Where problems come from: reasoning-gym's generator by name, or files, a folder or a hub's data set."""

    dataset: str | None = Field(
        None, min_length=1, description="task reasoning_gym: name of its dataset, e.g. chain_sum"
    )
    parameters: dict[str, Any] = Field({}, description="task reasoning_gym: keyword arguments of that dataset's config")
    path: str | None = Field(
        None,
        min_length=1,
        description="other tasks: a .jsonl, .csv or .parquet file, a folder of them, a hub name (owner/dataset), or a "
        "file of an installed package (package:<name>/<file>); .jsonl and .csv also as .gz, .bz2 or .xz",
    )
    revision: str | None = Field(
        None, description="commit, tag or branch of a hub's data set; null: its default branch"
    )
    config: str | None = Field(None, description="subset of a hub's data set")
    split: str | None = Field(None, description="split of a hub's data set; null: train")
    columns: dict[str, str] = Field(
        {},
        description="what the task reads: the source's column; dots reach into nested ones. `difficulty` and "
        "`category` make groups of an evaluation's figures",
    )
    weight: Annotated[Real, Field(gt=0)] = Field(1.0, description="share of every split, relative to the other sources")

    @property
    def name(self) -> str:
        """What rows and messages call it: the dataset, the file without its ending, or the hub name."""
        if self.dataset is not None:
            return self.dataset
        path = str(self.path).rstrip("/")
        found = _FILE_ENDING.search(path)
        return path[: found.start()].rpartition("/")[2] if found else path


class MaxPromptLength(Settings):
    """Leaves out prompts that are too long for the model that is to answer them."""

    tokens: Positive = Field(description="longest prompt, tokens, the model's chat template included")
    model: str = Field(description="name under `models`, with a `path`: its tokenizer and chat template measure")


class NearDuplicates(Settings):
    """Leaves out questions that differ little from one before them."""

    similarity: Annotated[Real, Field(ge=0.7, le=1)] = Field(
        0.8, description="share of word n-grams in common (Jaccard) from which on a question is left out"
    )
    words: Annotated[int, Field(ge=1, le=10)] = Field(3, description="words of an n-gram")


class Decontaminate(Settings):
    """Leaves out training problems that share text with an evaluation set of the config."""

    enabled: bool | None = Field(
        None, description="null: yes, except for reasoning_gym, whose questions have their wording in common"
    )
    words: Annotated[int, Field(ge=3, le=50)] = Field(
        13, description="so many words in a row in common are contamination; shorter questions are compared whole"
    )
    ignore: list[str] = Field(
        [], description="names under `data` that may be trained on though evaluated, e.g. to measure pass rates"
    )
    against: list[str] = Field([], description="further evaluation files: .jsonl, .csv or .parquet")
    column: str = Field("question", description="column of the text in those files")


class PassRate(Settings):
    """Keeps training problems that an evaluated model solves at times."""

    file: str = Field(description="samples of an evaluation, e.g. results/<run>/eval/base/<evaluation>.jsonl")
    min: Annotated[Real, Field(ge=0, le=1)] = Field(0.0, description="least share of correct answers")
    max: Annotated[Real, Field(ge=0, le=1)] = Field(1.0, description="largest share of correct answers")
    unmeasured: Literal["reject", "keep"] = Field("reject", description="problems that the file does not have")

    @model_validator(mode="after")
    def _is_a_range(self) -> "PassRate":
        if self.min > self.max:
            raise ValueError(f"min: {self.min} is above max: {self.max}, so no problem would be kept")
        return self


class Filters(Settings):
    """What is left out of a data set; every rejected problem is kept in rejected.jsonl with the reason."""

    max_prompt_length: MaxPromptLength | None = Field(None, description="null: no limit, preflight checks the lengths")
    near_duplicates: NearDuplicates | None = Field(None, description="null: only equal questions are duplicates")
    decontaminate: Decontaminate = Field(default_factory=Decontaminate)
    pass_rate: PassRate | None = Field(None, description="null: all problems, however hard")


class Data(Settings):
    """A verifiable task, split into problems to train on and problems held out."""

    task: Task = Field(description="kind of task; decides what is read of a source, and how answers are scored")
    sources: Annotated[list[Source], Field(min_length=1)] = Field(
        description="where problems come from; several are mixed by weight"
    )
    system_prompt: str | None = Field(None, description="system message before each question; null: none")
    instruction: str = Field("", description="text put before each question, e.g. how to give the answer")
    examples: NotNegative = Field(
        0, description="worked examples shown before each question: the first so many problems, in no split then"
    )
    train: NotNegative = Field(description="number of problems to train on; 0 for what is only evaluated on")
    heldout: Positive = Field(description="number of problems held out for evaluation")
    warmup: NotNegative = Field(0, description="number of further problems for a demo model's warm start")
    seed: NotNegative = Field(0, description="seed of the problem generator and of the split")
    reward: Reward = Field(default_factory=Reward, description="what a response earns")
    filters: Filters = Field(default_factory=Filters, description="what is left out")

    @model_validator(mode="before")
    @classmethod
    def _has_sources(cls, raw: Any) -> Any:
        old = {key: raw[key] for key in ("dataset", "parameters") if key in raw} if isinstance(raw, dict) else {}
        if old:
            shown = ", ".join(f"{key}: {value}" for key, value in old.items())
            raise ValueError(f"{' and '.join(old)}: belongs to an entry of `sources`; write `sources: [{{{shown}}}]`")
        return raw

    @model_validator(mode="after")
    def _sources_fit_the_task(self) -> "Data":
        generated = self.task == "reasoning_gym"
        wanted, refused = (
            ("dataset", ("path", "revision", "config", "split", "columns"))
            if generated
            else ("path", ("dataset", "parameters"))
        )
        for index, source in enumerate(self.sources):
            if getattr(source, wanted) is None:
                raise ValueError(f"sources[{index}]: task {self.task} needs `{wanted}`")
            if given := [key for key in refused if getattr(source, key)]:
                raise ValueError(f"sources[{index}].{given[0]}: task {self.task} does not take it; it takes `{wanted}`")
            known = (*FIELDS.get(self.task, ()), *LABELS)
            if unknown := [field for field in source.columns if field not in known]:
                near = difflib.get_close_matches(unknown[0], known, n=1)
                remedy = f"did you mean {near[0]}" if near else f"its fields are {', '.join(known)}"
                raise ValueError(
                    f"sources[{index}].columns.{unknown[0]}: task {self.task} reads no such field; {remedy}"
                )
        return self

    @model_validator(mode="after")
    def _reward_fits_the_task(self) -> "Data":
        for key in ("syntax", "style"):
            if self.task != "code" and getattr(self.reward, key) != 0:
                raise ValueError(f"reward.{key} is about programs: task {self.task} has none; leave it out")
        return self

    @property
    def decontaminates(self) -> bool:
        """Whether training problems are compared with the evaluation sets."""
        enabled = self.filters.decontaminate.enabled
        return self.task != "reasoning_gym" if enabled is None else enabled


class Evaluation(Settings):
    """How to generate and score answers to a held-out split."""

    data: str = Field(description="name under `data`; its held-out split is used")
    skip_questions: NotNegative = Field(
        0, description="leave out the first so many questions, which another evaluation uses to choose a checkpoint"
    )
    questions: Positive | None = Field(None, description="use only the next so many questions; null: all the rest")
    samples: Positive = Field(1, description="answers per question")
    temperature: Annotated[Real, Field(ge=0)] = Field(0.0, description="0: greedy")
    top_p: Annotated[Real, Field(gt=0, le=1)] = Field(1.0, description="nucleus of the sampling distribution")
    max_response_length: Positive | None = Field(
        None, description="tokens per answer; null: the run's grpo.max_response_length"
    )
    batch_size: Positive = Field(256, description="answers generated together")
    seed: NotNegative = Field(0, description="seed of sampling")

    @model_validator(mode="after")
    def _greedy_is_one(self) -> "Evaluation":
        if self.temperature == 0 and self.samples > 1:
            raise ValueError(
                f"samples: {self.samples} greedy answers to one question are all the same; "
                "set temperature above 0, or samples: 1"
            )
        return self


class Parallel(Settings):
    """Explicit parallel layout of the trained model (actor and reference) in Megatron-core."""

    tensor: Positive = Field(1, description="tensor parallel size (TP)")
    pipeline: Positive = Field(1, description="pipeline parallel size (PP)")
    virtual_pipeline: Positive | None = Field(None, description="model chunks per pipeline stage (VPP); null: one")
    context: Positive = Field(1, description="context parallel size (CP)")
    expert: Positive = Field(1, description="expert parallel size (EP)")
    expert_tensor: Positive | None = Field(None, description="tensor parallel size in experts (ETP); null: TP")
    rollout_tensor: Positive = Field(1, description="tensor parallel size of the rollout engine")


class Grpo(Settings):
    """The algorithm: batch arithmetic, loss, optimizer, sampling."""

    prompts_per_step: Positive = Field(64, description="prompts per training step")
    samples_per_prompt: Annotated[int, Field(ge=2, le=_LARGEST)] = Field(
        8, description="responses per prompt: the group whose mean reward is the baseline"
    )
    mini_batch_prompts: Positive | None = Field(
        None,
        description="prompts per optimizer step; null: prompts_per_step (one optimizer step a training step)",
    )
    micro_batch_size: Literal["auto"] | Positive = Field(
        "auto",
        description="responses per forward/backward pass on one GPU; auto: as many tokens as fit by forecast",
    )
    log_prob_micro_batch_size: Positive | None = Field(
        None, description="responses per log-probability pass on one GPU; null: as micro_batch_size"
    )
    learning_rate: Annotated[Real, Field(gt=0, le=1)] = Field(1e-6, description="peak learning rate of Adam")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="linear and cosine depend on `steps`: such a run cannot be prolonged"
    )
    lr_warmup_steps: NotNegative = Field(0, description="steps of linear warm-up")
    weight_decay: Annotated[Real, Field(ge=0)] = Field(0.01, description="decoupled weight decay")
    max_grad_norm: Annotated[Real, Field(gt=0)] = Field(1.0, description="gradient norm above which it is clipped")
    kl_coefficient: Annotated[Real, Field(ge=0)] = Field(
        1e-3, description="weight of the KL loss against the reference model; 0: no reference model"
    )
    kl_type: Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"] = Field(
        "low_var_kl", description="estimator of the KL divergence (k1, k2, k3 are Schulman's names)"
    )
    clip_ratio: Annotated[Real, Field(gt=0, lt=1)] = Field(0.2, description="PPO clip range")
    entropy_coefficient: Annotated[Real, Field(ge=0)] = Field(0.0, description="weight of the entropy bonus")
    temperature: Annotated[Real, Field(gt=0)] = Field(1.0, description="sampling temperature of rollouts")
    top_p: Annotated[Real, Field(gt=0, le=1)] = Field(1.0, description="nucleus of rollouts")
    max_prompt_length: Positive = Field(512, description="tokens; longer prompts are an error of preflight")
    max_response_length: Positive = Field(1024, description="tokens; generation stops there")
    seed: NotNegative = Field(0, description="seed of data order, rollouts and training")

    @model_validator(mode="after")
    def _both_or_neither_is_auto(self) -> "Grpo":
        if self.micro_batch_size == "auto" and self.log_prob_micro_batch_size is not None:
            raise ValueError(
                f"log_prob_micro_batch_size: {self.log_prob_micro_batch_size} responses, where micro_batch_size: auto "
                "makes passes by tokens; leave it out, or give micro_batch_size a number too"
            )
        return self


class Checkpoints(Settings):
    """Which checkpoints before the last one are exported and evaluated as well, and what they are for."""

    evaluate_every: Positive = Field(description="steps between evaluated checkpoints; a multiple of save_every")
    select_on: str | None = Field(
        None,
        description="one of the run's evaluations, not the first: the checkpoint that is best there is the one that "
        "the report judges, on the others; null: the last step is judged",
    )


class Run(Settings):
    """One GRPO training with its evaluation; its results are in `results/<run>/`."""

    model: str = Field(description="name under `models`")
    data: str = Field(description="name under `data`")
    evaluation: list[str] = Field(min_length=1, description="names under `evaluation`; the first decides the verdict")
    device: Literal["cuda", "cpu"] = Field(
        "cuda", description="cpu: gloo and a transformers rollout, for small models and tests"
    )
    nodes: Annotated[int, Field(ge=1, le=100_000)] = Field(1, description="nodes of the training job")
    gpus_per_node: Annotated[int, Field(ge=1, le=1024)] = Field(
        8, description="GPUs per node; on the CPU: training processes per node"
    )
    gpu_memory_gib: Annotated[Real, Field(gt=0)] = Field(80.0, description="memory of one GPU, GiB; for parallel: auto")
    runtime_minutes: Positive = Field(1440, description="time limit of the training job, minutes")
    parallel: Literal["auto"] | Parallel = Field("auto", description="auto, or an explicit layout")
    steps: Positive = Field(description="training steps; may be raised later to continue")
    save_every: Positive = Field(20, description="steps between checkpoints; the last step always saves")
    keep_checkpoints: Positive = Field(2, description="newest checkpoints that are kept")
    checkpoints: Checkpoints | None = Field(None, description="evaluate earlier checkpoints too; null: only the last")
    validate_every: NotNegative = Field(
        0,
        description="steps between verl's in-loop validations, sampled as the evaluation of the same data; 0: none",
    )
    grpo: Grpo = Field(default_factory=Grpo)
    verl: dict[str, Any] = Field(
        {},
        description="any further key of verl's config, dotted or nested, e.g. actor_rollout_ref.actor.clip_ratio_c",
    )

    @property
    def evaluated_steps(self) -> tuple[int, ...]:
        """The steps before the last one whose checkpoints are exported and evaluated, in order."""
        if self.checkpoints is None:
            return ()
        every = self.checkpoints.evaluate_every
        return tuple(range(every, self.steps, every))

    @property
    def select_on(self) -> str | None:
        """The evaluation that chooses a checkpoint, if one does."""
        return None if self.checkpoints is None else self.checkpoints.select_on

    @property
    def reported_evaluations(self) -> list[str]:
        """The evaluations that the trained model is judged by; the first decides. The one that chose it is not fair."""
        return [name for name in self.evaluation if name != self.select_on]


class Config(Settings):
    """The whole of `config.yaml`."""

    models: dict[str, Model]
    data: dict[str, Data]
    evaluation: dict[str, Evaluation]
    runs: dict[str, Run]
