"""Parameters by published totals and by two ways of counting; tests/differential/test_sizes.py asks Megatron itself."""

import pytest

from slipway.models.known import find_dimensions, known_models
from slipway.models.layout import Layout
from slipway.models.sizes import model_parameters, rank_parameters, stage_chunks, stage_layers


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        # Hugging Face's own totals; of Qwen1.5-MoE less the 24 gates of shared experts and of DeepSeek-V3 less the
        # 58 x 256 biases of its router, which are no parameters in verl's Megatron model
        ("Qwen/Qwen2.5-0.5B", 494_032_768),
        ("Qwen/Qwen3-30B-A3B", 30_532_122_624),
        ("Qwen/Qwen3-235B-A22B", 235_093_634_560),
        ("mistralai/Mixtral-8x7B-v0.1", 46_702_792_704),
        ("Qwen/Qwen1.5-MoE-A2.7B", 14_315_784_192 - 24 * 2048),
        ("deepseek-ai/DeepSeek-V3", 671_026_419_200 - 58 * 256),
        ("meta-llama/Llama-3.3-70B-Instruct", 70_553_706_496),
    ],
)
def test_published_models_have_their_published_size(model, parameters):
    assert model_parameters(find_dimensions(model)).total == parameters


def test_all_ranks_together_hold_the_model_once():
    for name in known_models():
        model = find_dimensions(name)
        layout = Layout(64, pipeline=2, expert=2, first_stage_layers=model.layers // 2 + 1) if model.experts else None
        layout = layout or Layout(2, pipeline=2, first_stage_layers=model.layers // 2 + 1)
        stages = [rank_parameters(model, layout, stage) for stage in range(layout.pipeline)]
        together = sum(stage.dense + stage.experts * layout.expert for stage in stages)
        copy = model.vocab_size * model.hidden_size if model.tied_embeddings else 0
        assert together == model_parameters(model).total + copy, name


def test_two_ways_of_counting_a_model_agree():
    for name in known_models():
        model = find_dimensions(name)
        if model.name != "Qwen2MoeForCausalLM":  # whose gates of shared experts only the maps have
            assert model_parameters(model).total == model.parameter_count, name


def test_the_layers_of_a_stage_are_named():
    uneven = Layout(4, pipeline=4, virtual_pipeline=2, first_stage_layers=2, last_stage_layers=4)
    assert stage_layers(10, uneven) == [2, 2, 2, 4]
    # chunk by chunk, the stages take the model's layers in turn
    assert [stage_chunks(10, uneven, stage) for stage in range(4)] == [
        [(0, 1), (5, 1)],
        [(1, 1), (6, 1)],
        [(2, 1), (7, 1)],
        [(3, 2), (8, 2)],
    ]
