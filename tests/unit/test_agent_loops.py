"""Agent loops are those that verl makes, whichever way they are made."""

import slipway.launch.verl_changes.registration  # noqa: F401  before verl's module: its import is what installs
from slipway.launch.verl_changes.agent_loops import instantiate


class Loop:
    def __init__(self, **arguments: object) -> None:
        self.arguments = arguments


TARGET = {"_target_": f"{__name__}.Loop"}


def test_a_loop_gets_its_arguments_themselves():
    arguments = {"tokenizer": object(), "tools": ["as it is"]}
    made = instantiate(TARGET, **arguments)
    assert type(made) is Loop
    assert made.arguments == arguments
    assert made.arguments["tokenizer"] is arguments["tokenizer"]


def test_a_config_that_says_more_is_hydras():
    made = instantiate(TARGET | {"turns": 3, "inner": dict(TARGET)}, tokenizer=None)
    assert made.arguments["turns"] == 3
    assert type(made.arguments["inner"]) is Loop


def test_verls_workers_make_them_so():
    from verl.experimental.agent_loop import agent_loop
    from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

    assert agent_loop.hydra.utils.instantiate is instantiate
    assert agent_loop._agent_loop_registry["single_turn_agent"].keys() == {"_target_"}
    assert SingleTurnAgentLoop.__name__ in agent_loop._agent_loop_registry["single_turn_agent"]["_target_"]
