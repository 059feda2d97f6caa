"""The rollout server without Ray: its queue, its seeds, and the weights which it refuses."""

import asyncio
import random

import pytest

from slipway.errors import SlipwayError

pytestmark = pytest.mark.verl


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    from tiny_model import make_model

    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def configs(model_folder):
    from verl.workers.config import HFModelConfig, RolloutConfig

    rollout = RolloutConfig(
        name="transformers",
        dtype="float32",
        prompt_length=32,
        response_length=8,
        tensor_model_parallel_size=1,
        engine_kwargs={"transformers": {"rows": 8, "prefill_rows": 2}},
    )
    return rollout, HFModelConfig(path=str(model_folder))


@pytest.fixture(scope="module")
def weights(model_folder):
    from safetensors.torch import load_file

    return list(load_file(model_folder / "model.safetensors").items())


def new_server(configs):
    from slipway.cpu.server import TransformersServer

    return TransformersServer(*configs, 0)


PROMPTS = [[5, 6, 7], [8, 9, 10, 11], [5, 6]]
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


async def ask(server, order, weights, seeded=True):
    """Ask for four samples of each prompt, in this order, some later than others."""
    await server.update_weights(weights, True, 3)
    wanted = [(p, sample) for p in range(len(PROMPTS)) for sample in range(4)]
    order.shuffle(wanted)

    async def one(place, prompt, sample):
        await asyncio.sleep(0.1 * (place % 3))
        seed = {"seed": 1000 + sample} if seeded else {}
        return (prompt, sample), await server.generate(f"{place}", PROMPTS[prompt], SAMPLING | seed)

    answers = await asyncio.gather(*(one(place, *each) for place, each in enumerate(wanted)))
    return {key: (answer.token_ids, answer.log_probs, answer.extra_fields) for key, answer in answers}


def test_seeded_requests_do_not_depend_on_arrival(configs, weights):
    first = asyncio.run(ask(new_server(configs), random.Random(0), weights))
    second = asyncio.run(ask(new_server(configs), random.Random(1), weights))
    assert first == second
    assert all(extra == {"global_steps": 3} for _, _, extra in first.values())
    assert all(len(tokens) == len(log_probs) <= 8 for tokens, log_probs, _ in first.values())


def test_unseeded_requests_give_the_same_samples_a_prompt(configs, weights):
    def samples(seed):
        answers = asyncio.run(ask(new_server(configs), random.Random(seed), weights, seeded=False))
        return [sorted(str(answers[p, sample]) for sample in range(4)) for p in range(len(PROMPTS))]

    first = samples(0)
    assert first == samples(1)
    assert all(len(set(group)) == 4 for group in first)


def test_wrong_weights_are_refused(configs, weights):
    import torch

    async def update(*parts):
        server = new_server(configs)
        for number, part in enumerate(parts, 1):
            await server.update_weights(part, number == len(parts), 1)

    asyncio.run(update(weights[:3], weights[3:]))
    with pytest.raises(SlipwayError, match="1 of 27 weights never came"):
        asyncio.run(update(weights[1:]))
    with pytest.raises(SlipwayError, match="no weight 'spare'"):
        asyncio.run(update([*weights, ("spare", torch.zeros(1))]))
    with pytest.raises(SlipwayError, match="has shape"):
        asyncio.run(update([(weights[0][0], torch.zeros(1)), *weights[1:]]))


SIZES = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.mark.parametrize("kind", ["qwen3-moe", "qwen2-moe", "mixtral", "deepseek-v3"])
def test_experts_weights_come_apart_and_are_used_together(kind, tmp_path):
    import small_models
    import torch
    from safetensors.torch import load_file

    from slipway.cpu.server import WeightLoader

    source, model = (small_models.build(kind, SIZES | {"num_key_value_heads": 2}) for _ in range(2))
    for name, buffer in source.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.normal_()
    source.save_pretrained(tmp_path)
    weights = list(load_file(tmp_path / "model.safetensors").items())
    loader = WeightLoader(model)
    loader.load(weights)
    loader.finish()
    expected = source.state_dict()
    assert all(torch.equal(weight, expected[name]) for name, weight in model.state_dict().items())
    loader.load([(name, weight) for name, weight in weights if ".experts.3." not in name])
    with pytest.raises(SlipwayError, match="weights never came"):
        loader.finish()


def test_weights_that_are_not_the_models_own_memory_are_refused(model_folder, monkeypatch):
    from transformers import AutoModelForCausalLM

    from slipway.cpu import server

    monkeypatch.setattr(
        server,
        "revert_weight_conversion",
        lambda _model, weights: {name: weight.clone() for name, weight in weights.items()},
    )
    with pytest.raises(SlipwayError, match="cannot take its weights one by one"):
        server.WeightLoader(AutoModelForCausalLM.from_pretrained(model_folder))


def test_a_failed_batch_fails_its_requests_only(configs, weights):
    async def scenario():
        server = new_server(configs)
        await server.update_weights(weights, True, 1)
        with pytest.raises(SlipwayError, match="leaves no room"):
            await server.generate("a", list(range(3, 43)), SAMPLING)
        with pytest.raises(IndexError):
            await server.generate("b", [10**6], SAMPLING)  # no such token
        return await server.generate("c", PROMPTS[0], SAMPLING)

    assert asyncio.run(scenario()).stop_reason == "completed"
