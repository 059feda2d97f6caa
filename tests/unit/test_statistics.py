"""Intervals and tests, against scipy and by simulation."""

import itertools

import numpy as np
import pytest
from scipy import stats

from slipway.statistics import (
    accuracy_interval,
    compare_paired,
    holm,
    majority_at_k,
    mcnemar_exact,
    minimum_detectable_difference,
    paired_bootstrap,
    paired_z_test,
    pass_at_k,
)


@pytest.mark.parametrize(("correct", "questions"), [(0, 30), (3, 30), (128, 256), (256, 256)])
def test_one_sample_per_question_gives_the_wilson_interval_of_scipy(correct: int, questions: int) -> None:
    expected = stats.binomtest(correct, questions).proportion_ci(0.95, method="wilson")
    interval = accuracy_interval(np.arange(questions)[:, None] < correct)
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))


def test_equal_samples_of_a_question_count_once() -> None:
    single = np.arange(40)[:, None] < 13
    assert accuracy_interval(single.repeat(8, axis=1)) == accuracy_interval(single)


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("accuracy", [0.1, 0.5, 0.95])
def test_accuracy_intervals_cover(accuracy: float, samples: int) -> None:
    random = np.random.default_rng(7)
    hits = 0
    for _ in range(1000):
        difficulty = random.beta(2 * accuracy, 2 * (1 - accuracy), size=(200, 1))
        interval = accuracy_interval(random.random((200, samples)) < difficulty)
        hits += interval.low <= accuracy <= interval.high
    assert 930 <= hits <= 970


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("range_", [(0.005, 0.05), (0.3, 0.7), (0.95, 0.995)])
def test_accuracy_intervals_cover_with_thirty_questions(range_: tuple[float, float], samples: int) -> None:
    # accuracies from a range, since with so few questions the coverage of a single one jumps (it is a sum of few terms)
    random = np.random.default_rng(11)
    hits = 0
    for accuracy in random.uniform(*range_, size=2000):
        difficulty = random.beta(2 * accuracy, 2 * (1 - accuracy), size=(30, 1))
        interval = accuracy_interval(random.random((30, samples)) < difficulty)
        hits += interval.low <= accuracy <= interval.high
    assert 1860 <= hits <= 1940


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize(("before", "after"), [(0.3, 0.3), (0.3, 0.6), (0.9, 0.95)])
def test_paired_intervals_cover(before: float, after: float, samples: int) -> None:
    random = np.random.default_rng(12)
    # the same questions are hard for both models
    ranks = (np.arange(2000) + 0.5) / 2000
    easy_before = stats.beta.ppf(ranks, 3 * before, 3 * (1 - before))
    easy_after = stats.beta.ppf(ranks, 3 * after, 3 * (1 - after))
    hits = 0
    for seed in range(1000):
        chosen = random.integers(len(ranks), size=200)
        base = random.binomial(samples, easy_before[chosen]) / samples
        final = random.binomial(samples, easy_after[chosen]) / samples
        interval = paired_bootstrap(final - base, samples, seed, resamples=1000)
        hits += interval.low <= (easy_after - easy_before).mean() <= interval.high
    assert 930 <= hits <= 970


def test_bootstrap_agrees_with_scipy_where_the_imagined_questions_weigh_little() -> None:
    differences = np.random.default_rng(3).choice([-1.0, 0.0, 1.0], size=2000, p=[0.1, 0.6, 0.3])
    interval = paired_bootstrap(differences, seed=5)
    other = stats.bootstrap(
        (differences,), np.mean, method="percentile", n_resamples=5000, rng=np.random.default_rng(5)
    ).confidence_interval
    assert (interval.low, interval.high) == pytest.approx((other.low, other.high), abs=0.002)


@pytest.mark.parametrize(("before", "after"), [(0.02, 0.05), (0.03, 0.03), (0.95, 0.98)])
def test_paired_intervals_of_thirty_questions_are_never_too_narrow(before: float, after: float) -> None:
    # where hardly a question differs an interval without zero cannot come about, so that they cover nearly always
    random = np.random.default_rng(13)
    hits = 0
    for seed in range(1000):
        luck = random.random(30)
        differences = (luck < after).astype(float) - (random.permutation(luck) < before)
        interval = paired_bootstrap(differences, 1, seed, resamples=1000)
        hits += interval.low <= after - before <= interval.high
    assert hits >= 930


def test_equal_answers_are_no_proof_of_equality() -> None:
    answers = np.ones((50, 1))
    difference = compare_paired(answers, answers)
    assert difference.value == 0.0
    assert difference.interval.low < 0 < difference.interval.high


def test_pairing_matters() -> None:
    base = np.repeat([1, 0], 100)[:, None]
    slightly_better = base.copy()
    slightly_better[100:110] = 1
    paired = compare_paired(base, slightly_better)
    assert paired.value == pytest.approx(0.05)
    assert paired.interval.low > 0
    shuffled = compare_paired(base, np.random.default_rng(0).permutation(slightly_better))
    assert shuffled.value == pytest.approx(0.05)
    assert shuffled.interval.low < 0


def test_difference_has_the_sign_of_the_second_model() -> None:
    better = compare_paired([[0]] * 30, [[1]] * 30)
    worse = compare_paired([[1]] * 30, [[0]] * 30)
    assert (better.value, worse.value) == (1.0, -1.0)
    assert better.interval.low > 0 > worse.interval.high


def test_the_same_seed_gives_the_same_interval() -> None:
    random = np.random.default_rng(0)
    base, final = random.random((100, 1)) < 0.3, random.random((100, 1)) < 0.5
    assert compare_paired(base, final, seed=1) == compare_paired(base, final, seed=1)
    assert compare_paired(base, final, seed=1).interval != compare_paired(base, final, seed=2).interval


def test_unequal_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="10 and 11 questions"):
        compare_paired(np.zeros((10, 1)), np.zeros((11, 1)))


def test_mcnemar_counts_only_the_questions_that_differ() -> None:
    base = [1] * 40 + [0] * 12 + [1] * 3 + [0] * 5
    final = [1] * 40 + [1] * 12 + [0] * 3 + [0] * 5
    assert mcnemar_exact(base, final) == pytest.approx(stats.binomtest(3, 15, 0.5).pvalue)
    assert mcnemar_exact(base, base) == 1.0
    assert compare_paired(np.zeros((9, 2)), np.ones((9, 2))).mcnemar_p is None


def test_the_detectable_difference_is_found_in_four_of_five_comparisons() -> None:
    random = np.random.default_rng(2)
    win, loss = 0.30, 0.20
    shape = random.choice([-1.0, 0.0, 1.0], size=400, p=[loss, 1 - win - loss, win])
    detectable = minimum_detectable_difference(shape)
    middle = (win + loss) / 2
    probabilities = [middle - detectable / 2, 1 - win - loss, middle + detectable / 2]
    comparisons = random.choice([-1.0, 0.0, 1.0], size=(2000, 400), p=probabilities)
    found = stats.ttest_1samp(comparisons, 0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_pass_at_k_is_the_mean_over_all_choices_of_k_samples(k: int) -> None:
    correct = np.random.default_rng(1).random((12, 5)) < 0.3
    choices = [correct[:, list(chosen)].any(axis=1).mean() for chosen in itertools.combinations(range(5), k)]
    assert pass_at_k(correct, k) == pytest.approx(np.mean(choices))


def test_pass_at_k_needs_k_samples() -> None:
    with pytest.raises(ValueError, match="pass@3"):
        pass_at_k([[1, 0]], 3)


def test_the_majority_of_all_samples_decides() -> None:
    correct = [[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]]
    answers = [["7", "7.0", "8", "8"], ["7", "8", "8", "9"], ["7", "7", "8", None], [None] * 4]
    # a tie, a wrong majority, a right one, no vote
    assert majority_at_k(correct, answers, 4) == (0.5 + 0 + 1 + 0) / 4
    assert majority_at_k(correct, answers, 1) == np.mean(correct)


def test_a_majority_of_fewer_samples_has_no_bias() -> None:
    random = np.random.default_rng(4)
    answers = random.choice(["right", "wrong", "worse"], p=[0.5, 0.3, 0.2], size=(4000, 8))
    estimate = majority_at_k(answers == "right", answers.tolist(), 2)
    # right twice, or once and tied with a wrong one
    assert estimate == pytest.approx(0.5**2 + 2 * 0.5 * 0.5 / 2, abs=0.015)


def test_majority_needs_k_samples() -> None:
    with pytest.raises(ValueError, match="maj@3"):
        majority_at_k([[1, 0]], [["a", "b"]], 3)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_of_many_comparisons_without_a_difference_one_in_twenty_families_finds_one() -> None:
    random = np.random.default_rng(5)
    families = 600
    found = 0
    for _ in range(families):
        p_values = [paired_z_test(random.choice([-1.0, 0.0, 1.0], size=300, p=[0.2, 0.6, 0.2])) for _ in range(8)]
        found += min(holm(p_values)) < 0.05
    assert found / families == pytest.approx(0.05, abs=0.03)


def test_the_paired_z_test_agrees_with_scipys_t_test_on_many_questions() -> None:
    differences = np.random.default_rng(6).choice([-1.0, 0.0, 1.0], size=3000, p=[0.19, 0.6, 0.21])
    assert paired_z_test(differences) == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, rel=0.05)
