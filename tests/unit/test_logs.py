"""What a training's log says of its end."""

import pytest

from slipway.launch.logs import cause, last_lines

RAY = """\x1b[36m(WorkerDict pid=12, ip=10.0.0.2)\x1b[0m step 3
Traceback (most recent call last):
  File "main_ppo.py", line 93, in run_ppo
ray.exceptions.RayTaskError(OutOfMemoryError): \x1b[36mray::TaskRunner.run()\x1b[39m (pid=7, ip=10.0.0.1)
  File "trainer.py", line 1, in fit
\x1b[36m(WorkerDict pid=12, ip=10.0.0.2)\x1b[0m torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB
Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.
node.py:748 -- Local node finished draining; shutting down.
"""


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (RAY, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"),
        ("AssertionError: first\nmore\nValueError: last\n", "ValueError: last"),
        ("ray.exceptions.ActorDiedError: The actor died.\n", "ray.exceptions.ActorDiedError: The actor died."),
        ("step 1\nno error: everything is fine\nKilled\n", None),
        ("", None),
    ],
)
def test_the_error_that_ended_a_training_is_named(text, named, tmp_path):
    (tmp_path / "log").write_text(text)
    assert cause(tmp_path / "log") == named


def test_a_log_that_is_not_there_says_so(tmp_path):
    assert cause(tmp_path / "log") is None
    assert "does not exist" in last_lines(tmp_path / "log")
