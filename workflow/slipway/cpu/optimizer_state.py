"""torch's AdamW inside Megatron's DistributedOptimizer, saved and loaded without loss.

Without Transformer Engine and Apex, Megatron-core 0.16.1 falls back to torch's AdamW, whose state differs from
FusedAdam's in one thing: the step count is a tensor of each parameter. Two places miss that.

* `state_dict` (distrib_optimizer.py:641) reads the step of every parameter. A fresh optimizer has none, and a
  fresh optimizer is what a checkpoint is loaded into: `assert len(steps) == 1` fails.
* Loading keeps `step` out of the file (`LocalNonpersistentObject`, :1667), so it comes back as the *fresh*
  optimizer's 0, and `_set_main_param_and_optimizer_states` (:937) copies that over the value which
  `load_state_dict` had just taken from the parameter groups. Nothing fails; Adam's bias correction starts again.
  Besides, all parameters are given one and the same tensor (:825), which each of them then increments.
"""

import functools
from types import ModuleType
from typing import Any

import torch


def patch(module: ModuleType) -> None:
    """Mend `DistributedOptimizer.state_dict` and `load_state_dict` of Megatron's module."""
    if module.HAVE_APEX_OR_TE:  # then the optimizer is FusedAdam
        return
    optimizer_class = module.DistributedOptimizer
    state_dict, load_state_dict = optimizer_class.state_dict, optimizer_class.load_state_dict

    @functools.wraps(state_dict)
    def state_dict_of_any_age(self: Any) -> dict[str, Any]:
        _initialize_missing_state(self.optimizer)
        return state_dict(self)  # type: ignore[no-any-return]

    @functools.wraps(load_state_dict)
    def load_state_dict_with_step(self: Any, loaded: dict[str, Any]) -> None:
        load_state_dict(self, loaded)
        _set_step(self.optimizer, loaded["optimizer"]["param_groups"])

    optimizer_class.state_dict = state_dict_of_any_age
    optimizer_class.load_state_dict = load_state_dict_with_step


def _initialize_missing_state(optimizer: torch.optim.Optimizer) -> None:
    """Give each parameter the state which AdamW creates on its first step."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if "step" not in state:
                state.setdefault("exp_avg", torch.zeros_like(parameter.data))
                state.setdefault("exp_avg_sq", torch.zeros_like(parameter.data))
                state["step"] = torch.tensor(0.0)


def _set_step(optimizer: torch.optim.Optimizer, param_groups: list[dict[str, Any]]) -> None:
    steps = {float(group["step"]) for group in param_groups}
    if len(steps) != 1:
        raise ValueError(f"the checkpoint's parameter groups disagree on Adam's step: {sorted(steps)}")
    (step,) = steps
    for state in optimizer.state.values():
        state["step"] = torch.tensor(step)  # one for each: every parameter counts its own up
