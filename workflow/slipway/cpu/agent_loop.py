"""verl's single-turn agent loop, with a seed for each sample.

verl identifies a sample to its agent loop (global step, row of the data set, number within the group) but not to
the rollout server, and the order in which requests reach the server differs from run to run. The seed travels in
the sampling parameters, as vLLM's per-request seed does.
"""

from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

from slipway.cpu.sampling import digest


@register("single_turn_agent")  # replaces verl's class under its own name, which data sets may mention
class SeededSingleTurnAgentLoop(SingleTurnAgentLoop):
    """Adds `seed` to the sampling parameters; all else is verl's."""

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> AgentLoopOutput:
        """Generate one sample of one prompt."""
        seed = digest(self.rollout_config.seed, *(kwargs.get(key) for key in ("global_steps", "index", "session_id")))
        output: AgentLoopOutput = await super().run({**sampling_params, "seed": seed}, priority=priority, **kwargs)
        return output
