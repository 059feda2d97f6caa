"""verl on a machine without a GPU: its unmodified trainer and MegatronEngine on gloo, with a transformers rollout.

verl loads this package itself, in every process of a run, because the launcher sets
`VERL_USE_EXTERNAL_MODULES=slipway.cpu` (see `environment`). With `VERL_PLATFORM=cpu` it then makes
`torch.cuda` answer for the CPU; without, importing it changes nothing. What such a run proves is
orchestration and mathematics, not NCCL, Transformer Engine, vLLM, speed or memory.

| module | owns |
|---|---|
| `environment` | what a launcher sets: variables and verl overrides; imports neither torch nor verl |
| `plugin` | the order in which the parts below are put in place, and the refusal where a GPU is visible |
| `torch_cuda` | `torch.cuda` and device arguments, answered for the CPU |
| `distributed` | process groups on gloo |
| `platform` | verl's platform "cpu" |
| `megatron` | attention and norms that replace Transformer Engine's |
| `experts` | experts that replace Transformer Engine's |
| `optimizer_state` | torch's AdamW inside Megatron's distributed optimizer, saved and loaded without loss |
| `bfloat16` | matrix products on processors without bfloat16 |
| `agent_loop` | a seed for each sample |
| `sampling` | choosing a token from logits and a seed |
| `generation` | batched generation, where a result depends on its own request alone |
| `server` | the rollout's process: queue and weights |
| `rollout` | verl's rollout interface |
"""

import os
import sys


def _attach_to_verl() -> None:
    if os.environ.get("VERL_PLATFORM", "").strip().lower() != "cpu":
        return
    if "verl" in sys.modules:  # the usual way: verl is importing us at the end of its own import
        from slipway.cpu import plugin

        plugin.install()
        return
    # A Ray worker that unpickles one of our actors imports us first. verl's later import then finds this
    # package already loaded and would not run it again.
    import wrapt

    @wrapt.when_imported("verl")
    def _(_module: object) -> None:
        from slipway.cpu import plugin

        plugin.install()


_attach_to_verl()
