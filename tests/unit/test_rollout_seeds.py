"""The rollout's samples depend on their own request alone: not on batch, order, neighbours or process."""

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from slipway.cpu.generation import Generator, Request, batches  # noqa: E402
from slipway.cpu.sampling import SamplingParams, choose, digest, uniforms  # noqa: E402
from slipway.errors import SlipwayError  # noqa: E402

END, PAD, VOCABULARY = 2, 0, 97  # a vocabulary which no vector length divides


@pytest.fixture(scope="module")
def model():
    from transformers import AutoModelForCausalLM, Qwen2Config

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,  # so that the distribution is far from uniform
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")


def generator(model, rows=16):
    return Generator(model, end_of_sequence=[END], pad=PAD, rows=rows, prefill_rows=4)


def requests(prompts=9, samples=5, **params):
    choose_prompt = random.Random(0)
    made = []
    for _ in range(prompts):
        prompt = tuple(choose_prompt.randrange(3, VOCABULARY) for _ in range(choose_prompt.randrange(2, 40)))
        made += [
            Request(prompt, SamplingParams(max_tokens=12, **params), digest("seed", prompt, sample))
            for sample in range(samples)
        ]
    return made


def generate(model, wanted, rows=16):
    results = {}
    for indices in batches(wanted, rows):
        completions = generator(model, rows).generate([wanted[i] for i in indices])
        results |= {(wanted[i].prompt, wanted[i].seed): c for i, c in zip(indices, completions, strict=True)}
    return results


def test_results_do_not_depend_on_what_else_is_waiting(model):
    wanted = requests()
    together = generate(model, wanted)
    alone = {}
    for request in random.Random(1).sample(wanted, 6):
        alone |= generate(model, [request])
    shuffled = random.Random(2).sample(wanted, 30)
    for name, results in (("alone", alone), ("shuffled", generate(model, shuffled))):
        for key, completion in results.items():
            # equality of floats on purpose: one differing bit can flip a later token
            assert completion == together[key], name


def test_samples_of_a_prompt_differ_and_are_reproducible(model):
    wanted = requests(prompts=1, samples=8)
    first, second = generate(model, wanted), generate(model, wanted)
    assert first == second
    assert len({tuple(c.tokens) for c in first.values()}) > 4


def test_matches_the_model_without_cache_or_padding(model):
    """Greedy tokens, and their log-probabilities, against plain forward passes over each whole sequence."""
    wanted = requests(prompts=4, samples=1, temperature=0.0)
    completions = generate(model, wanted)
    for request in wanted:
        completion = completions[request.prompt, request.seed]
        sequence = torch.tensor([[*request.prompt, *completion.tokens]])
        with torch.no_grad():
            log_probs = model(sequence).logits[0, len(request.prompt) - 1 : -1].log_softmax(-1)
        assert log_probs.argmax(-1).tolist() == completion.tokens
        expected = log_probs.gather(-1, sequence[0, len(request.prompt) :, None])[:, 0]
        assert completion.log_probs == pytest.approx(expected.tolist(), abs=1e-4)


def test_stops_at_the_end_of_sequence_and_at_the_limit(model):
    for completion in generate(model, requests(prompts=6, samples=8)).values():
        assert 1 <= len(completion.tokens) <= 12
        assert END not in completion.tokens[:-1]
        assert completion.tokens[-1] == END or len(completion.tokens) == 12


def test_batches_hold_one_padded_length_and_neighbouring_samples():
    wanted = requests()
    seen = []
    for indices in batches(wanted, 16):
        assert len({wanted[i].padded_length for i in indices}) == 1
        assert 1 <= len(indices) <= 16
        seen += indices
    assert sorted(seen) == list(range(len(wanted)))


def test_uniforms_are_pinned():
    """A change here changes every resumed run."""
    assert uniforms(digest("seed", 1), 3).tolist() == pytest.approx(PINNED, abs=0)
    assert uniforms(5, 4)[:2].tolist() == uniforms(5, 2).tolist()


PINNED = [0.7666308766913947, 0.10244144243477915, 0.4198568657927064]


def test_choice_follows_the_distribution():
    logits = torch.tensor([[0.0, 1.0, 2.0, -torch.inf]])
    rows = 20_000
    tokens, log_probs = choose(
        logits.expand(rows, -1), [SamplingParams(max_tokens=1)] * rows, torch.from_numpy(uniforms(7, rows))
    )
    share = np.bincount(tokens.numpy(), minlength=4) / rows
    assert share == pytest.approx(logits[0].softmax(-1).numpy(), abs=0.01)
    assert log_probs.exp()[tokens == 2][0].item() == pytest.approx(logits[0].softmax(-1)[2].item())


@pytest.mark.parametrize(
    ("params", "kept"),
    [({"top_k": 2}, {0, 1}), ({"top_p": 0.6}, {0, 1}), ({"top_p": 0.4}, {0}), ({"top_k": 3, "top_p": 0.99}, {0, 1, 2})],
)
def test_top_k_and_top_p(params, kept):
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    rows = 500
    tokens, log_probs = choose(
        logits.expand(rows, -1), [SamplingParams(max_tokens=1, **params)] * rows, torch.from_numpy(uniforms(1, rows))
    )
    assert set(tokens.tolist()) == kept
    # log-probabilities are those of the distribution sampled from, as vLLM's "processed_logprobs" are
    assert sum(dict(zip(tokens.tolist(), log_probs.exp().tolist(), strict=True)).values()) == pytest.approx(1)


def test_unknown_sampling_parameters_are_refused():
    with pytest.raises(SlipwayError, match="min_p"):
        SamplingParams.from_request({"min_p": 0.1}, max_tokens=1)
    with pytest.raises(SlipwayError, match="repetition_penalty"):
        SamplingParams.from_request({"repetition_penalty": 1.1}, max_tokens=1)
    given = {"temperature": 0.7, "top_k": -1, "top_p": 1.0, "repetition_penalty": 1.0, "logprobs": True}
    assert SamplingParams.from_request(given, max_tokens=3).temperature == 0.7
