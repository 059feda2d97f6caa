"""Generation, resume and the stage, with a tiny random model that the tests make."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from slipway.config.schema import Data, Evaluation, LengthPenalty, Reward
from slipway.data import prepare_data
from slipway.errors import SlipwayError
from slipway.evaluate import generate_transformers
from slipway.evaluate.generate_transformers import LoadedModel, generate, load_model, weights_digest
from slipway.evaluate.metrics import summarise
from slipway.evaluate.questions import Question, group_questions, read_kept_questions, read_questions
from slipway.evaluate.rescore import rescore
from slipway.evaluate.samples import Answer, Journal, Sample
from slipway.evaluate.sampling import Sampling
from slipway.evaluate.stage import EvaluationTask, evaluate_model
from slipway.manifest import FileEntry, Manifest, Product, hash_file, read_manifest, verify_files, write_json
from slipway.models.architecture import read_architecture
from slipway.preflight.findings import Severity
from slipway.preflight.inputs import check_tokenizer
from slipway.rewards import reward_text

torch.set_num_threads(1)  # threads cost more than they bring to a model this small

CHARACTERS = "0123456789+-= what?"
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}={% endif %}"


def make_model(folder: Path, seed: int = 0, hidden_size: int = 32) -> Path:
    vocabulary = {character: index for index, character in enumerate(dict.fromkeys(CHARACTERS))}
    vocabulary["<end>"] = len(vocabulary)
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="0"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>", pad_token="<end>")
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(vocabulary),
            hidden_size=hidden_size,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            initializer_range=0.3,
            bos_token_id=None,
            eos_token_id=vocabulary["<end>"],
        )
    )
    # what a published model may carry, and an evaluation must not obey unseen
    model.generation_config.update(do_sample=True, top_k=1, repetition_penalty=1.5)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_data(folder: Path, questions: int = 12, instruction: str = "", reward: Reward | None = None) -> Path:
    rows = []
    for index in range(questions):
        text, answer = f"{index * 37}+{index}" + "?" * (index % 4), str(index * 38)
        own = {"dataset": "chain_sum", "parameters": {}, "metadata": {}}
        entry = {"task": "reasoning_gym", "question": text, "answer": answer, "metadata": own}
        rows.append(
            {
                "data_source": "reasoning_gym/chain_sum",
                "prompt": [{"role": "user", "content": instruction + text}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": answer},
                "extra_info": {
                    "question_id": f"{index:016x}",
                    "split": "heldout",
                    "index": index,
                    "dataset": "chain_sum",
                    "entry": json.dumps(entry),
                    "reward": reward_text(reward or Reward()),
                },
            }
        )
    folder.mkdir(parents=True)
    path = folder / "heldout.parquet"
    pd.DataFrame(rows).to_parquet(path)
    entry_of_file = FileEntry(path.name, path.stat().st_size, hash_file(path))
    manifest = Manifest("prepare_data", "f", {}, [entry_of_file])
    write_json(folder / "manifest.json", vars(manifest) | {"files": [vars(entry_of_file)]})
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def loaded(model: Path) -> LoadedModel:
    return load_model(model)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_data(tmp_path / "data")


def sampled(batch_size: int = 5, seed: int = 0, temperature: float = 1.0, top_p: float = 1.0) -> Sampling:
    return Sampling(temperature, top_p, max_response_length=12, batch_size=batch_size, seed=seed)


def run(loaded: LoadedModel, requests: list[tuple[Question, int]], sampling: Sampling) -> set[Answer]:
    return {answer for batch in generate(loaded, requests, sampling) for answer in batch}


def requests_for(data: Path, samples: int = 3) -> list[tuple[Question, int]]:
    return [(question, sample) for question in read_questions(data / "heldout.parquet") for sample in range(samples)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_do_not_depend_on_batches(loaded: LoadedModel, data: Path, temperature: float) -> None:
    requests = requests_for(data)
    alone = run(loaded, requests, sampled(1, temperature=temperature))
    assert len(alone) == len(requests)
    assert run(loaded, requests, sampled(7, temperature=temperature)) == alone
    assert run(loaded, requests[::-1], sampled(100, temperature=temperature)) == alone


def test_samples_and_seeds_differ(loaded: LoadedModel, data: Path) -> None:
    requests = requests_for(data, samples=8)
    answers = run(loaded, requests, sampled())
    long = [answer.response for answer in answers if answer.response_tokens > 5]
    assert len(set(long)) == len(long) > 20
    assert run(loaded, requests, sampled(seed=1)) != answers


def test_greedy_is_the_argmax_of_a_plain_forward_pass(loaded: LoadedModel, data: Path) -> None:
    question = read_questions(data / "heldout.parquet")[5]
    [answer] = run(loaded, [(question, 0)], sampled(temperature=0.0))
    tokens = loaded.tokenizer(answer.prompt)["input_ids"]
    start = len(tokens)
    with torch.no_grad():
        while len(tokens) - start < 12 and tokens[-1] not in loaded.stop_tokens:
            tokens.append(int(loaded.model(torch.tensor([tokens])).logits[0, -1].argmax()))
    assert answer.prompt == "185+5?="
    assert answer.response == loaded.tokenizer.decode(tokens[start:], skip_special_tokens=True)
    assert answer.response_tokens == len(tokens) - start


def test_first_tokens_follow_the_softmax(loaded: LoadedModel, data: Path) -> None:
    question = read_questions(data / "heldout.parquet")[3]
    sampling = Sampling(0.7, 1.0, max_response_length=1, batch_size=2000, seed=4)
    drawn = Counter(answer.response for answer in run(loaded, [(question, s) for s in range(4000)], sampling))
    tokens = loaded.tokenizer([question.messages[0]["content"] + "="], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        expected = (loaded.model(tokens).logits[0, -1] / 0.7).softmax(-1)
    names = [loaded.tokenizer.decode([index], skip_special_tokens=True) for index in range(len(expected))]
    observed = np.array([drawn[name] / 4000 for name in names])
    assert observed == pytest.approx(expected.numpy(), abs=0.03)
    assert expected.max() < 0.9


def test_top_p_leaves_out_the_tail(loaded: LoadedModel, data: Path) -> None:
    question = read_questions(data / "heldout.parquet")[3]
    one_token = Sampling(1.0, 1.0, max_response_length=1, batch_size=500, seed=0)
    requests = [(question, sample) for sample in range(500)]
    whole = {answer.response for answer in run(loaded, requests, one_token)}
    nucleus = {answer.response for answer in run(loaded, requests, Sampling(1.0, 0.5, 1, 500, 0))}
    assert nucleus < whole


def test_stop_and_length(loaded: LoadedModel, data: Path) -> None:
    answers = run(loaded, requests_for(data, samples=10), sampled())
    assert {answer.stop for answer in answers} == {"eos", "length"}
    assert all(answer.response_tokens == 12 for answer in answers if answer.stop == "length")
    assert all("<end>" not in answer.response for answer in answers)
    # the end token counts, as in verl
    assert all(answer.response_tokens == len(answer.response) + (answer.stop == "eos") for answer in answers)


def test_too_long_an_answer_is_refused(loaded: LoadedModel, data: Path) -> None:
    with pytest.raises(SlipwayError, match=r"exceed the model's 64 positions"):
        run(loaded, requests_for(data), Sampling(0.0, 1.0, 63, 4, 0))


def test_weights_digest_sees_weights_only(model: Path, loaded: LoadedModel, tmp_path: Path) -> None:
    stored = Qwen2ForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    assert weights_digest(stored) == loaded.weights
    with torch.no_grad():
        stored.model.norm.weight[0] *= 1.5
    assert weights_digest(stored) != loaded.weights


def test_journal_drops_a_line_that_was_cut_off(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    answers = [Answer("a", sample, "1+1=", "2\u2028", 1, "eos") for sample in range(3)]
    journal.append(answers)
    content = journal.path.read_bytes()
    journal.path.write_bytes(content[:-7])
    assert list(journal.read().values()) == answers[:2]
    journal.append(answers[2:])
    assert list(journal.read().values()) == answers


@pytest.mark.parametrize("damage", [b"\0" * 20, b"\xff\xfe", b"5", b'{"question_id": "a"}'])
def test_journal_is_cut_off_where_a_crash_damaged_it(tmp_path: Path, damage: bytes) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    answers = [Answer("a", sample, "1+1=", "2", 1, "eos") for sample in range(3)]
    journal.append(answers)
    lines = journal.path.read_bytes().splitlines(keepends=True)
    journal.path.write_bytes(lines[0] + damage + b"\n" + lines[2])
    assert list(journal.read().values()) == answers[:1]
    assert journal.path.read_bytes() == lines[0]


def test_metrics_by_hand() -> None:
    def sample(question: str, number: int, correct: bool, tokens: int, stop: str) -> Sample:
        return Sample(
            question,
            number,
            "",
            "x",
            tokens,
            stop,
            float(correct),
            correct,
            tokens > 1,
            tokens > 3,
            {"correctness": float(correct)},
            "x",
            "x",
        )

    samples = [
        sample("a", 0, True, 4, "eos"),
        sample("a", 1, False, 8, "length"),
        sample("b", 0, False, 1, "eos"),
        sample("b", 1, False, 3, "eos"),
    ]
    metrics = summarise(samples, 2, {"terms": ["3", "4"]})
    assert metrics["accuracy"] == 0.25
    assert metrics["pass_at_k"] == {"1": 0.25, "2": 0.5}
    # the right answer of question a ties with its wrong one
    assert metrics["maj_at_k"] == {"1": 0.25, "2": 0.25}
    three, four = metrics["by_group"]["terms"]["3"], metrics["by_group"]["terms"]["4"]
    assert (three["questions"], three["accuracy"], four["accuracy"]) == (1, 0.5, 0.0)
    assert (three["response_tokens_mean"], four["response_tokens_mean"]) == (6.0, 2.0)
    assert (three["stopped_by_length"], four["stopped_by_length"]) == (0.5, 0.0)
    assert (three["tagged_rate"], four["tagged_rate"]) == (1.0, 0.0)
    assert (three["answered_rate"], four["answered_rate"]) == (1.0, 0.5)
    assert set(three) < set(metrics)
    assert metrics["response_tokens_mean"] == 4.0
    assert metrics["stopped_by_length"] == 0.25
    assert metrics["answered_rate"] == 0.75
    assert metrics["tagged_rate"] == 0.5
    assert metrics["questions"] == 2


@pytest.mark.parametrize("nested", [False, True])
def test_questions_are_grouped_by_what_sorts_them_into_few(nested: bool) -> None:
    def question(index: int) -> Question:
        metadata = {"num_terms": 3 + index % 2, "expression": f"{index} + 1", "source": "x", "difficulty": {"a": 1}}
        own = {"dataset": "sums", "parameters": {}, "metadata": metadata} if nested else metadata
        return Question(str(index), [], "reasoning_gym/sums", "1", {"entry": json.dumps({"metadata": own})})

    assert group_questions([question(index) for index in range(20)]) == {"num_terms": ["3", "4"] * 10}


def test_difficulty_and_category_of_the_source_reach_the_evaluation(tmp_path: Path) -> None:
    subjects = ["Algebra", "Geometry", None]
    rows = [
        {"problem": f"What is {n} + {n}?", "answer": str(2 * n), "level": n % 2, "about": {"type": subjects[n % 3]}}
        for n in range(60)
    ]
    (tmp_path / "math.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = {"difficulty": "level", "category": "about.type"}
    source = {"path": str(tmp_path / "math.jsonl"), "columns": columns}
    data = Data(task="math", sources=[source], train=0, heldout=60)
    prepare_data(data, tmp_path / "data")
    questions = read_questions(tmp_path / "data/heldout.parquet")
    groups = group_questions(questions)
    numbers = [int(question.ground_truth) // 2 for question in questions]
    assert groups["difficulty"] == [str(n % 2) for n in numbers]
    assert groups["category"] == [subjects[n % 3] or "none" for n in numbers]
    unmapped = Data(task="math", sources=[{"path": source["path"]}], train=0, heldout=60)
    prepare_data(unmapped, tmp_path / "unmapped")
    assert group_questions(read_questions(tmp_path / "unmapped/heldout.parquet")) == {}
    missing = Data(task="math", sources=[source | {"columns": {"category": "subject"}}], train=0, heldout=60)
    with pytest.raises(SlipwayError, match="has no column 'subject'"):
        prepare_data(missing, tmp_path / "missing")


def evaluate(model: Path, data: Path, folder: Path, **settings: object) -> Manifest:
    wanted = {"data": "sums", "samples": 2, "temperature": 1.0, "batch_size": 5} | settings
    task = EvaluationTask("heldout", Evaluation(**wanted), data, 12)
    evaluate_model("base", model, [task], folder / "base.json", folder / "base")
    return read_manifest(folder / "base.json", "evaluate")


def test_stage_writes_samples_and_facts(model: Path, data: Path, tmp_path: Path, loaded: LoadedModel) -> None:
    manifest = evaluate(model, data, tmp_path / "eval")
    lines = (tmp_path / "eval/base/heldout.jsonl").read_text().splitlines()
    samples = [json.loads(line) for line in lines]
    assert [(s["question_id"], s["sample"]) for s in samples] == [
        (f"{index:016x}", sample) for index in range(12) for sample in range(2)
    ]
    metrics = manifest.facts["evaluations"]["heldout"]
    assert manifest.facts["weights"] == loaded.weights
    assert metrics["accuracy"] == np.mean([s["correct"] for s in samples])
    assert samples[4]["ground_truth"] == str(2 * 38)
    assert read_kept_questions(tmp_path / "eval/base/questions/heldout.jsonl")[2].ground_truth == str(2 * 38)


def counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by the number of answers that are asked of the model."""
    asked: list[int] = []

    def counted(*arguments: object) -> object:
        asked.append(len(arguments[1]))  # type: ignore[arg-type]
        return generate(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(generate_transformers, "generate", counted)
    return asked


def test_another_reward_is_scored_without_the_model(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = evaluate(model, make_data(tmp_path / "data"), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(generate_transformers, "load_model", lambda folder: pytest.fail("the model was loaded again"))
        other = evaluate(model, make_data(tmp_path / "other", reward=Reward(correctness=2.0, format=0.5)), tmp_path)
    assert other.facts["weights"] == first.facts["weights"]
    before, after = (one.facts["evaluations"]["heldout"] for one in (first, other))
    assert after["answers"] == before["answers"]
    assert set(after["components"]) == {"correctness", "format"}


def test_what_was_generated_once_is_not_generated_again(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = counting(monkeypatch)
    evaluate(model, data, tmp_path, questions=8, samples=1)
    evaluate(model, data, tmp_path, seed=1)
    # four more questions, and a second answer to each of the first eight
    evaluate(model, data, tmp_path)
    # the same problems with another instruction are other questions
    evaluate(model, make_data(tmp_path / "other", instruction="2"), tmp_path)
    evaluate(model, data, tmp_path, seed=1, questions=3)
    assert asked == [8, 24, 16, 24]


def test_rescoring_equals_evaluating_with_the_new_reward(
    model: Path, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reward = Reward(length=LengthPenalty(from_characters=0, to_characters=12))
    expected = evaluate(model, make_data(tmp_path / "new", reward=reward), tmp_path / "new-eval")
    evaluate(model, data, tmp_path)
    shutil.rmtree(data)
    (tmp_path / "base.json").unlink()
    with caplog.at_level("INFO", logger="slipway"):
        rescore("base", {"heldout": reward_text(reward)}, tmp_path / "base.json", tmp_path / "base")
    assert read_manifest(tmp_path / "base.json", "evaluate") == expected
    assert "answers are scored otherwise: 0 became right, 0 wrong" in caplog.text
    written = (tmp_path / "base.json").stat().st_mtime_ns
    with caplog.at_level("INFO", logger="slipway"):
        rescore("base", {"heldout": reward_text(reward)}, tmp_path / "base.json", tmp_path / "base")
    assert "nothing has changed" in caplog.text
    assert (tmp_path / "base.json").stat().st_mtime_ns == written


def test_a_rescoring_that_was_killed_is_finished_by_the_next(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate(model, data, tmp_path)
    rewards = {"heldout": reward_text(Reward(correctness=2.0, format=1.0))}

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Product, "publish", killed)
        with pytest.raises(KeyboardInterrupt):
            rescore("base", rewards, tmp_path / "base.json", tmp_path / "base")
    rescore("base", rewards, tmp_path / "base.json", tmp_path / "base")
    manifest = read_manifest(tmp_path / "base.json", "evaluate")
    verify_files(manifest, tmp_path / "base")
    assert "format" in manifest.facts["evaluations"]["heldout"]["components"]


def test_rescoring_refuses_what_are_not_the_models_answers(model: Path, data: Path, tmp_path: Path) -> None:
    rewards = {"heldout": reward_text(Reward())}
    with pytest.raises(SlipwayError, match="holds no finished evaluation"):
        rescore("base", rewards, tmp_path / "base.json", tmp_path / "base")
    evaluate(model, data, tmp_path)
    gold = tmp_path / "base/questions/heldout.jsonl"
    asked = gold.read_text()
    gold.write_text(asked.replace('"ground_truth": "', '"ground_truth": "7', 1))
    with pytest.raises(SlipwayError, match="not the questions that the model was asked"):
        rescore("base", rewards, tmp_path / "base.json", tmp_path / "base")
    gold.write_text(asked)
    with pytest.raises(SlipwayError, match="holds answers to heldout, but the run is evaluated on heldout, more"):
        rescore("base", rewards | {"more": ""}, tmp_path / "base.json", tmp_path / "base")
    file = tmp_path / "base/heldout.jsonl"
    file.write_text(file.read_text().replace('"response": "', '"response": "7', 1))
    with pytest.raises(SlipwayError, match="the file was altered"):
        rescore("base", rewards, tmp_path / "base.json", tmp_path / "base")


def test_rescoring_takes_neither_torch_nor_transformers() -> None:
    heavy = "import sys, slipway.evaluate.rescore; print({'torch', 'transformers', 'vllm'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "set()"


def test_killed_evaluation_generates_only_what_is_missing(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = evaluate(model, data, tmp_path / "whole")
    asked: list[int] = []

    def dying(*arguments: object) -> object:
        asked.append(len(arguments[1]))  # type: ignore[arg-type]
        for number, batch in enumerate(generate(*arguments)):  # type: ignore[arg-type]
            if number == 2 and len(asked) == 1:
                raise KeyboardInterrupt
            yield batch

    monkeypatch.setattr(generate_transformers, "generate", dying)
    with pytest.raises(KeyboardInterrupt):
        evaluate(model, data, tmp_path / "killed")
    resumed = evaluate(model, data, tmp_path / "killed")
    assert asked == [24, 14]
    assert resumed == whole


def test_same_inputs_do_no_work_and_others_do(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = evaluate(model, data, tmp_path)
    (tmp_path / "base.json").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(generate_transformers, "load_model", lambda folder: pytest.fail("the model was loaded again"))
        assert evaluate(model, data, tmp_path, batch_size=9) == first
    assert evaluate(model, data, tmp_path, seed=1).fingerprint != first.fingerprint
    assert evaluate(make_model(tmp_path / "other", seed=1), data, tmp_path).facts["weights"] != (first.facts["weights"])


def test_questions_asked_for_must_exist(model: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(SlipwayError, match="holds 12 questions, the evaluation asks for 13"):
        evaluate(model, data, tmp_path, questions=13)
    assert evaluate(model, data, tmp_path, questions=5).facts["evaluations"]["heldout"]["questions"] == 5


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_a_tokenizer_that_cannot_be_loaded_is_named(tmp_path: Path, content: str | None) -> None:
    make_model(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(SlipwayError, match=r"its tokenizer (cannot be loaded|has no vocabulary).*fetch tokenizer"):
        load_model(tmp_path)
    found = check_tokenizer("mine", tmp_path, read_architecture(tmp_path))
    assert [(finding.key, finding.severity) for finding in found] == [("models.mine", Severity.ERROR)]
