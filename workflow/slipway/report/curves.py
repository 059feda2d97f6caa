"""Which of verl's metrics the report draws, what they mean, and in what unit."""

import csv
import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from slipway.report.reading import Step


@dataclass(frozen=True)
class Curve:
    """A metric of verl over training steps: its key, how it is called, its unit, and how to read it.

    `range` are the keys of the lowest and the highest value behind a mean. An `exact` one has no scatter to smooth.
    """

    key: str
    title: str
    unit: str
    hint: str
    logarithmic: bool = False
    percent: bool = False
    range: tuple[str, str] | None = None
    exact: bool = False

    def values_of(self, steps: Sequence[Step]) -> list[float]:
        """Return the logged values in the order of the steps."""
        return [step.values[self.key] for step in steps if self.key in step.values]

    def in_words(self, value: float) -> str:
        """Return a value with its unit."""
        return f"{100 * value:.4g} % ({self.unit})" if self.percent else f"{value:.4g} {self.unit}"


REWARD = Curve(
    key="critic/score/mean",
    title="Reward",
    unit="mean score of a step's answers",
    hint="Rises when the policy learns the task.",
)

LENGTHS = (
    Curve(
        key="response_length/mean",
        title="Response length",
        unit="tokens",
        hint="A steady climb to the limit, or a collapse, is a warning sign.",
        range=("response_length/min", "response_length/max"),
    ),
    Curve(
        key="response_length/clip_ratio",
        title="Answers cut off",
        unit="share at the length limit",
        hint="A cut-off answer can hardly score.",
        percent=True,
    ),
    Curve(
        key="response/aborted_ratio",
        title="Empty answers",
        unit="share of a step's answers",
        hint="No token at all: the rollout engine gave up, or the policy ends at once.",
        percent=True,
    ),
)

# Components of the reward before weighting: slipway.launch.verl_changes.trainer logs `reward/<name>`.
COMPONENTS = (
    Curve("reward/correct", "Right answers", "share of a step's answers", "What evaluation counts.", percent=True),
    Curve("reward/correctness", "Correctness", "mean, 0 to 1", "The task's own score, partial credit included."),
    Curve(
        "reward/format", "Format", "share in the asked form", "Such as answer tags, a box, a code block.", percent=True
    ),
    Curve("reward/syntax", "Syntax", "share that compiles", "Programs that are Python at all.", percent=True),
    Curve("reward/style", "Style", "mean, 0 to 1", "1 less the linter's findings a line."),
    Curve("reward/length", "Length penalty", "mean, -1 to 0", "-1 is a response at or beyond the upper limit."),
    Curve("reward/custom", "Custom", "mean", "What the run's own function returned."),
    Curve("reward/answered", "Answered", "share with any answer", "The others were empty.", percent=True),
    Curve(
        "reward/tagged", "Tagged", "share in the asked form", "Such as answer tags, a box, a code block.", percent=True
    ),
)

POLICY = (
    Curve(
        key="actor/kl_loss",
        title="KL to the reference",
        unit="nats per token",
        hint="How far the policy has moved from the base model.",
    ),
    Curve(
        key="actor/entropy",
        title="Entropy",
        unit="nats per token",
        hint="A drop to zero means that the policy explores no more.",
    ),
    Curve(
        key="actor/grad_norm",
        title="Gradient norm",
        unit="L2 norm before clipping (log scale)",
        hint="Spikes go with unstable updates.",
        logarithmic=True,
    ),
    Curve(
        key="actor/pg_clipfrac",
        title="Clipped updates",
        unit="share of tokens",
        hint="Tokens whose probability ratio left the clip range.",
        percent=True,
    ),
    Curve(
        key="actor/ppo_kl",
        title="KL to the rollout policy",
        unit="nats per token",
        hint="How far a step's own updates moved the policy.",
    ),
    Curve(
        key="actor/lr",
        title="Learning rate",
        unit="per optimizer step",
        hint="The schedule as it was run.",
        exact=True,
    ),
    Curve(
        key="rollout_corr/log_ppl_abs_diff",
        title="Rollout against trainer: log-probs",
        unit="nats per token, mean of an answer's gap",
        hint="The same tokens, by the rollout engine and by the trainer; near zero is right.",
    ),
    Curve(
        key="training/rollout_probs_diff_mean",
        title="Rollout against trainer: gap",
        unit="mean difference of probabilities",
        hint="The same tokens, by the rollout engine and by the trainer; near zero is right.",
    ),
)

_TOGETHER = ("response_length/mean", "actor/kl_loss", "actor/entropy", "actor/grad_norm")
OVERLAID = (REWARD, *(curve for curve in LENGTHS + POLICY if curve.key in _TOGETHER))
"""What is drawn of several runs in one chart."""

THROUGHPUT = Curve(
    key="perf/throughput",
    title="Throughput",
    unit="tokens per second and device",
    hint="All tokens of a step over its time.",
)

GPU_SYSTEM = (
    THROUGHPUT,
    Curve(
        key="perf/mfu/actor",
        title="Model FLOPs utilization",
        unit="share of the GPUs' peak, update",
        hint="Useful arithmetic of the update over what the GPUs could do.",
        percent=True,
    ),
    Curve(
        key="actor/perf/max_memory_allocated_gb",
        title="Memory of the trainer: allocated",
        unit="GiB, highest so far",
        exact=True,
        hint="What torch had allocated in the first rank; the rollout engine is another process.",
    ),
    Curve(
        key="actor/perf/max_memory_reserved_gb",
        title="Memory of the trainer: reserved",
        unit="GiB, highest so far",
        exact=True,
        hint="What torch had taken from the GPU for it.",
    ),
    Curve(
        key="actor/perf/cpu_memory_used_gb",
        title="Host memory",
        unit="GiB in use on the first node",
        exact=True,
        hint="By all processes. A steady climb is a leak.",
    ),
)

CPU_SYSTEM = (
    THROUGHPUT,
    Curve(
        key="actor/perf/max_memory_allocated_gb",
        title="Memory of the trainer",
        unit="GiB, highest so far",
        exact=True,
        hint="The first training process, resident in host memory.",
    ),
    Curve(
        key="actor/perf/cpu_memory_used_gb",
        title="Host memory",
        unit="GiB in use on the first node",
        exact=True,
        hint="By all processes, of others too. A steady climb is a leak.",
    ),
)

# Phases of a step in the order they happen: verl's timer, its name, its colour. None of these is a colour
# that the style sheet changes in the dark scheme.
PHASES = (
    ("gen", "generate", "#1f77b4"),
    ("reward", "score", "#cc79a7"),
    ("old_log_prob", "log-probs", "#56b4e9"),
    ("ref", "reference", "#009e73"),
    ("values", "values", "#7f7f7f"),
    ("adv", "advantages", "#f0e442"),
    ("update_critic", "update critic", "#8c6d31"),
    ("update_actor", "update", "#e69f00"),
    ("update_weights", "send weights", "#c44e00"),
    ("save_checkpoint", "save", "#6a3d9a"),
    ("testing", "validate", "#b15928"),
)
# The part of a step that no timer covers.
OTHER = ("other", "#b3bac4")


def components_of(logged: Collection[str]) -> list[Curve]:
    """Return the curves of the components among the `logged` keys: each once, where one says the same as another."""
    left_out = {"reward/tagged"} if "reward/format" in logged else set()
    return [curve for curve in COMPONENTS if curve.key in logged and curve.key not in left_out]


def as_csv(steps: Sequence[Step], curves: Sequence[Curve]) -> str:
    """Return what the curves show as CSV: a row a step, a column a metric of verl, five digits."""
    ranges = [key for curve in curves for key in curve.range or ()]
    timers = [f"timing_s/{timer}" for timer in ("step", *(timer for timer, *_ in PHASES))]
    logged = {key for step in steps for key in step.values}
    keys = [key for key in dict.fromkeys([*(curve.key for curve in curves), *ranges, *timers]) if key in logged]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["step", *keys])
    table.writerows(
        [step.number, *(f"{step.values[key]:.5g}" if key in step.values else "" for key in keys)] for step in steps
    )
    return text.getvalue()
