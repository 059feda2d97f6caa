"""The code sandbox: model-written programs run here, without network, the user's files, or the tests they face.

* `isolation`, `seccomp`: what bubblewrap lets a program see and use
* `inside`: what runs in there; `process`: starting, watching and ending it
* `judging`: a program's tests; `availability`: whether there is a sandbox on this machine
"""

from slipway.rewards.sandbox.availability import require, unavailable
from slipway.rewards.sandbox.isolation import Isolation, Limits
from slipway.rewards.sandbox.judging import Verdict, judge_functions, judge_outputs
from slipway.rewards.sandbox.process import Sandbox

__all__ = ["Isolation", "Limits", "Sandbox", "Verdict", "judge_functions", "judge_outputs", "require", "unavailable"]
