"""Which of verl's metrics the report draws, what they mean, and in what unit."""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Curve:
    """A metric of verl over training steps: its key, how it is called, its unit, and how to read it."""

    key: str
    title: str
    unit: str
    hint: str
    logarithmic: bool = False
    percent: bool = False


LEARNING = (
    Curve(
        key="critic/score/mean",
        title="Reward",
        unit="mean score of a step's answers",
        hint="Rises when the policy learns the task.",
    ),
    Curve(
        key="response_length/mean",
        title="Response length",
        unit="tokens, mean",
        hint="A steady climb to the limit, or a collapse, is a warning sign.",
    ),
    Curve(
        key="response_length/clip_ratio",
        title="Answers cut off",
        unit="share at the length limit",
        hint="A cut-off answer can hardly score.",
        percent=True,
    ),
)

# Components of the reward before weighting: slipway.launch.trainer logs `reward/<name>`.
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
    ),
    Curve(
        key="training/rollout_probs_diff_mean",
        title="Rollout against trainer: gap",
        unit="mean difference of probabilities",
        hint="The same tokens, by the rollout engine and by the trainer; near zero is right.",
    ),
    Curve(
        key="training/rollout_actor_probs_pearson_corr",
        title="Rollout against trainer: agreement",
        unit="correlation of probabilities",
        hint="Near one is right.",
    ),
)

SYSTEM = (
    Curve(
        key="perf/throughput",
        title="Throughput",
        unit="tokens per second and device",
        hint="All tokens of a step over its time.",
    ),
    Curve(
        key="actor/perf/max_memory_allocated_gb",
        title="Memory of the trainer",
        unit="GiB, highest so far",
        hint="As verl measures it: allocated by the first rank.",
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
