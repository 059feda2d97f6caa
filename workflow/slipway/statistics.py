"""How sure a measured accuracy is, and whether one model is better than another.

Pure mathematics on arrays, shared by the rooms that measure (`evaluate`) and that judge (`report`). Answers
are given as an array `[questions, samples]` of 0 and 1: `samples` independent answers to each question.
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

CONFIDENCE = 0.95
RESAMPLES = 10_000


@dataclass(frozen=True)
class Interval:
    """A two-sided confidence interval."""

    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """How much better the second of two models answers the same questions.

    `mcnemar_p` is the exact McNemar test's two-sided p-value; None with several samples per question, where
    the test does not apply. `detectable` is the smallest true difference that a comparison with this many
    questions and this much scatter finds with a probability of 80 %. `p` is the two-sided p-value of no difference:
    McNemar's, or with several samples that of a paired z test.
    """

    value: float
    interval: Interval
    p: float
    mcnemar_p: float | None
    detectable: float


def accuracy_interval(correct: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Return Wilson's score interval for the mean of `correct`, an array `[questions, samples]` of 0 and 1.

    Samples of one question are alike, so they count less than as many questions. As is usual for cluster
    samples (Dean and Pagano 2015, "Evaluating confidence interval methods for binomial proportions in
    clustered surveys"), the number of answers is replaced by the effective one, p(1-p)/var(p), with the
    variance over questions; for one sample per question that is the plain Wilson interval. Unlike a bootstrap
    it keeps its width when all answers are right, or all wrong.
    """
    answers = _matrix(correct)
    questions, samples = answers.shape
    mean = float(answers.mean())
    variance = float(answers.mean(axis=1).var()) / questions
    # never fewer than the questions, never more than all the answers
    independent = mean * (1 - mean) / variance if variance > 0 else questions
    effective = min(max(independent, questions), questions * samples)
    return wilson_interval(mean, effective, confidence)


def wilson_interval(mean: float, count: float, confidence: float = CONFIDENCE) -> Interval:
    """Return the score interval of a proportion `mean` out of `count` trials (Wilson 1927)."""
    z = float(stats.norm.ppf((1 + confidence) / 2))
    denominator = 1 + z * z / count
    centre = (mean + z * z / (2 * count)) / denominator
    half = z / denominator * math.sqrt(mean * (1 - mean) / count + z * z / (4 * count * count))
    return Interval(max(0.0, centre - half), min(1.0, centre + half))


def compare_paired(base: ArrayLike, final: ArrayLike, seed: int = 0) -> Difference:
    """Compare two models on the same questions; both arrays are `[questions, samples]` of 0 and 1.

    Rows must belong to the same questions; the numbers of samples may differ.
    """
    before, after = _pair(base, final)
    differences = after.mean(axis=1) - before.mean(axis=1)
    samples = min(before.shape[1], after.shape[1])
    p = paired_test(before, after)
    single = before.shape[1] == after.shape[1] == 1
    return Difference(
        value=float(differences.mean()),
        interval=paired_bootstrap(differences, samples, seed),
        p=p,
        mcnemar_p=p if single else None,
        detectable=minimum_detectable_difference(differences, samples),
    )


def paired_test(base: ArrayLike, final: ArrayLike) -> float:
    """Return the two-sided p-value of no difference between two models on the same questions.

    Both arrays are `[questions, samples]` of 0 and 1. With one sample a question it is the exact McNemar test's, else
    a paired z test's.
    """
    before, after = _pair(base, final)
    if before.shape[1] == after.shape[1] == 1:
        return mcnemar_exact(before[:, 0], after[:, 0])
    return paired_z_test(after.mean(axis=1) - before.mean(axis=1), min(before.shape[1], after.shape[1]))


def paired_bootstrap(
    differences: ArrayLike,
    samples: int = 1,
    seed: int = 0,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> Interval:
    """Return the percentile bootstrap interval of the mean of `differences`, an array `[questions]`.

    Questions are drawn with replacement, each with all its `samples`: their scatter is in its mean already,
    and drawing samples anew inside them would count it twice (Davison and Hinkley 1997, section 3.8).
    """
    padded = _with_imagined(differences, samples)
    values, counts = np.unique(padded, return_counts=True)
    # drawing questions with replacement is drawing how often each distinct value comes up
    random = np.random.default_rng(seed)
    means = random.multinomial(len(padded), counts / len(padded), size=resamples) @ values / len(padded)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(low), float(high))


def mcnemar_exact(base: ArrayLike, final: ArrayLike) -> float:
    """Return the two-sided p-value of McNemar's test: a binomial test of the questions that differ.

    Both arrays are `[questions]` of 0 and 1.
    """
    before, after = np.asarray(base, dtype=bool), np.asarray(final, dtype=bool)
    gained, lost = int((after & ~before).sum()), int((before & ~after).sum())
    return float(stats.binomtest(gained, gained + lost, 0.5).pvalue) if gained + lost else 1.0


def paired_z_test(differences: ArrayLike, samples: int = 1) -> float:
    """Return the two-sided p-value that the mean of `differences`, an array `[questions]`, is 0."""
    mean = float(np.asarray(differences, dtype=np.float64).mean())
    return float(2 * stats.norm.sf(abs(mean) / _standard_error(differences, samples)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number, in the order given.

    The chance that any of them is below 0.05 while there is no difference anywhere is then at most 5 %, however
    they depend on each other (Holm 1979, "A simple sequentially rejective multiple test procedure").
    """
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, (len(p_values) - rank) * p_values[index])
        corrected[index] = min(1.0, highest)
    return corrected


def minimum_detectable_difference(
    differences: ArrayLike, samples: int = 1, power: float = 0.8, confidence: float = CONFIDENCE
) -> float:
    """Return the true mean difference that a two-sided paired z test finds with probability `power`."""
    error = _standard_error(differences, samples)
    return float((stats.norm.ppf((1 + confidence) / 2) + stats.norm.ppf(power)) * error)


def pass_at_k(correct: ArrayLike, k: int) -> float:
    """Return the unbiased estimate of pass@k: the share of questions solved by one of `k` samples.

    1 - C(n-c, k) / C(n, k), averaged over questions with c of n samples right (Chen et al. 2021, "Evaluating
    Large Language Models Trained on Code", equation 1).
    """
    answers = _matrix(correct)
    samples = answers.shape[1]
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} needs at least {k} samples per question, there are {samples}")
    wrong = samples - answers.sum(axis=1).astype(int)
    return float(np.mean([1 - math.comb(count, k) / math.comb(samples, k) for count in wrong]))


def majority_at_k(correct: ArrayLike, answers: Sequence[Sequence[Hashable | None]], k: int) -> float:
    """Return maj@k: the share of questions that the most frequent of `k` answers solves.

    `answers` is `[questions, samples]` like `correct`; equal values are one answer, None has no vote. Correct answers
    count as equal, however they are written; answers with equally many votes share the credit (the vote of Wang et
    al. 2023, "Self-Consistency Improves Chain of Thought Reasoning"). The estimate is the mean over the disjoint
    groups of `k` successive samples, so it has no bias where k is below the number of samples.
    """
    right = _matrix(correct).astype(bool)
    questions, samples = right.shape
    if not 1 <= k <= samples:
        raise ValueError(f"maj@{k} needs at least {k} samples per question, there are {samples}")
    groups = [slice(start, start + k) for start in range(0, samples - k + 1, k)]
    credits = [
        _vote(right[question, group], answers[question][group]) for question in range(questions) for group in groups
    ]
    return float(np.mean(credits))


def _vote(correct: NDArray[np.bool_], answers: Sequence[Hashable | None]) -> float:
    """Return what one vote earns: 1, 0, or a share of 1 where the right answer ties for the first place."""
    right = int(correct.sum())
    wrong = Counter(
        answer for answer, is_right in zip(answers, correct, strict=True) if not is_right and answer is not None
    )
    most_wrong = max(wrong.values(), default=0)
    if right == 0 or right < most_wrong:
        return 0.0
    ties = sum(votes == right for votes in wrong.values())
    return 1 / (1 + ties)


def _standard_error(differences: ArrayLike, samples: int) -> float:
    padded = _with_imagined(differences, samples)
    return float(padded.std()) / math.sqrt(len(padded))


def _with_imagined(differences: ArrayLike, samples: int) -> NDArray[np.float64]:
    """Add one imagined question that was won and one that was lost.

    The adjustment of Bonett and Price (2012) for paired proportions, its size that of one question's sampling
    error. Without it an interval is too narrow when few questions differ, and a point when none does: with 30
    questions, at 2 against 5 %, it covers 66 % instead of 95.
    """
    observed = np.asarray(differences, dtype=np.float64)
    if observed.ndim != 1 or not observed.size:
        raise ValueError(f"one difference per question is needed, got an array of shape {observed.shape}")
    size = 1 / math.sqrt(samples)
    return np.concatenate([observed, [size, -size]])


def _pair(base: ArrayLike, final: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    before, after = _matrix(base), _matrix(final)
    if len(before) != len(after):
        raise ValueError(f"paired comparison of {len(before)} and {len(after)} questions")
    return before, after


def _matrix(correct: ArrayLike) -> NDArray[np.float64]:
    answers = np.asarray(correct, dtype=np.float64)
    if answers.ndim != 2 or not answers.size:
        raise ValueError(f"answers must be an array [questions, samples], got shape {answers.shape}")
    return answers
