"""The answers of one model: those it gave before, and those it is still to give."""

import json
import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from slipway.evaluate.generate_transformers import chat_tokenizer
from slipway.evaluate.questions import Question
from slipway.evaluate.samples import Answer, Journal
from slipway.evaluate.sampling import Sampling, render
from slipway.manifest import fingerprint, write_json

# Raised when the same model, prompt and sampling would give another answer.
GENERATION = 1

logger = logging.getLogger(__name__)


class Answering:
    """Answers of the model in `model_folder`, kept below `kept` by what they depend on; `files` are its digests.

    The model is loaded when there is something to generate, and not before: to score anew takes neither it nor a GPU.
    Answers of other models are removed, those of other sampling settings stay.
    """

    def __init__(self, engine: ModuleType, model_folder: Path, files: Mapping[str, str], kept: Path):
        self._engine = engine
        self._model_folder = model_folder
        identity = fingerprint({"version": GENERATION, "engine": engine.ENGINE, "model": dict(files)})
        self._folder = kept / identity[:16]
        for other in kept.glob("*"):
            if other != self._folder:
                shutil.rmtree(other) if other.is_dir() else other.unlink()

    @cached_property
    def _loaded(self) -> Any:
        loaded = self._engine.load_model(self._model_folder)
        write_json(self._folder / "model.json", {"weights": loaded.weights})
        return loaded

    @cached_property
    def _tokenizer(self) -> Any:
        return chat_tokenizer(self._model_folder)

    @property
    def weights(self) -> str:
        """The digest of the model's weights."""
        known = self._folder / "model.json"
        if known.is_file():
            return str(json.loads(known.read_text(encoding="utf-8"))["weights"])
        return str(self._loaded.weights)

    def answer(self, title: str, questions: Sequence[Question], samples: int, sampling: Sampling) -> list[Answer]:
        """Return `samples` answers to each question, ordered by question, then by sample; `title` is for the log."""
        journal = Journal(self._folder / f"{fingerprint(_of_answers(sampling))[:16]}.jsonl")
        answers = journal.read()
        asked = [
            (question, (str(render(self._tokenizer, None, question, sampling)[0]), question.question_id, sample))
            for question in questions
            for sample in range(samples)
        ]
        requests = [(question, key[2]) for question, key in asked if key not in answers]
        if len(requests) < len(asked):
            logger.info("%s: %d of %d answers are there already", title, len(asked) - len(requests), len(asked))
        if requests:
            loaded = self._loaded
            started, done = time.monotonic(), 0
            for batch in self._engine.generate(loaded, requests, sampling):
                journal.append(batch)
                answers |= {(answer.prompt, answer.question_id, answer.sample): answer for answer in batch}
                done += len(batch)
                rate = done / (time.monotonic() - started)
                logger.info(
                    "%s: %d/%d answers, %.1f a second, %.0f s left",
                    *(title, len(asked) - len(requests) + done, len(asked), rate, (len(requests) - done) / rate),
                )
        return [answers[key] for _, key in asked]


def _of_answers(sampling: Sampling) -> dict[str, Any]:
    """Return what an answer depends on besides model and prompt; the batch it was generated in is not part of it."""
    return {name: value for name, value in vars(sampling).items() if name != "batch_size"}
