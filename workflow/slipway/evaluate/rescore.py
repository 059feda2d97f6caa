"""`scripts/evaluate.py --rescore`: score kept answers again, without a model, a GPU or the data they came from."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipway.errors import SlipwayError
from slipway.evaluate.questions import Question, problems_digest, questions_digest, read_kept_questions
from slipway.evaluate.samples import Sample, answers_digest, read_samples
from slipway.evaluate.scoring import STAGE, VERSION, questions_file, samples_file, score_and_keep, scorers
from slipway.manifest import open_product

# Answers that are named whose score has changed.
SHOWN = 5

logger = logging.getLogger(__name__)


def rescore(which: str, rewards: Mapping[str, str], manifest_path: Path, folder: Path) -> None:
    """Score the answers in `folder` with today's scorers; write samples and metrics, then the manifest.

    `which` is the evaluated model; `rewards` are the reward settings, as JSON text, of each evaluation of the run. Says
    what changed. What it writes equals what rule `evaluate` would make of the same answers and settings. Raises
    `SlipwayError` when there are no answers, not those of every evaluation, or when they or the questions were altered.
    """
    with open_product(STAGE, manifest_path, folder, {}) as product:
        done = product.completed()
        if done is None:
            raise SlipwayError(f"{folder}: holds no finished evaluation to score again; run rule evaluate first")
        recorded: dict[str, Any] = done.facts["evaluations"]
        if set(recorded) != set(rewards):
            raise SlipwayError(
                f"{folder}: holds answers to {', '.join(sorted(recorded))}, but the run is evaluated on "
                f"{', '.join(sorted(rewards))}; run rule evaluate, which generates what is missing and nothing else"
            )
        kept = {name: _read(folder, name, recorded[name], reward) for name, reward in rewards.items()}
        evaluations, inputs = {}, {}
        for name, (questions, before) in kept.items():
            answers = [sample.unscored for sample in before]
            samples, metrics = score_and_keep(folder, name, questions, answers)
            inputs[name] = recorded[name]["settings"] | {
                "questions": questions_digest(questions),
                "scorers": scorers(),
            }
            evaluations[name] = metrics | {"settings": inputs[name]}
            _say_what_changed(f"rescore {which} {name}", recorded[name], metrics, before, samples)
        product = product.with_inputs(done.inputs | {"version": VERSION, "evaluations": inputs})
        facts = done.facts | {"evaluations": evaluations}
        if done.fingerprint == product.fingerprint and done.facts == facts and manifest_path.is_file():
            logger.info("rescore %s: nothing has changed; %s stays as it is", which, manifest_path)
            return
        product.publish([file(folder, name) for name in kept for file in (samples_file, questions_file)], facts)


def _read(folder: Path, name: str, recorded: Mapping[str, Any], reward: str) -> tuple[list[Question], list[Sample]]:
    questions = read_kept_questions(questions_file(folder, name))
    samples = read_samples(samples_file(folder, name))
    # not the files' digests: a rescoring that was killed has written other rewards and scores already
    if problems_digest(questions) != recorded.get("problems", problems_digest(questions)):
        raise SlipwayError(
            f"{questions_file(folder, name)}: these are not the questions that the model was asked: the file was "
            "altered. Run rule evaluate, which writes it again from the data"
        )
    if answers_digest(sample.unscored for sample in samples) != recorded.get("answers"):
        raise SlipwayError(
            f"{samples_file(folder, name)}: these are not the answers that the model gave: the file was altered. Run "
            "rule evaluate, which writes it again from its journal"
        )
    return [question.with_reward(reward) for question in questions], samples


def _say_what_changed(
    title: str,
    recorded: Mapping[str, Any],
    metrics: Mapping[str, Any],
    before: Sequence[Sample],
    after: Sequence[Sample],
) -> None:
    pairs = zip(before, after, strict=True)
    changed = [(old, new) for old, new in pairs if (old.score, old.correct) != (new.score, new.correct)]
    if not changed:
        logger.info("%s: all %d answers score what they did, accuracy %.1f %%", title, len(after), _accuracy(metrics))
        return
    right = sum(new.correct and not old.correct for old, new in changed)
    wrong = sum(old.correct and not new.correct for old, new in changed)
    logger.info(
        "%s: %d of %d answers are scored otherwise: %d became right, %d wrong; accuracy %.1f %% -> %.1f %%",
        *(title, len(changed), len(after), right, wrong, _accuracy(recorded), _accuracy(metrics)),
    )
    for old, new in changed[:SHOWN]:
        logger.info("  question %s, sample %d: score %g -> %g", new.question_id, new.sample, old.score, new.score)


def _accuracy(metrics: Mapping[str, Any]) -> float:
    return 100 * float(metrics["accuracy"])
