"""The code sandbox inside a SLURM job, for root and for an ordinary user."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from conftest import ENVIRONMENT, ROOT
from sandbox.cluster import USER, Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.sandbox, pytest.mark.timeout(120)]

JUDGE = """
from slipway.rewards.sandbox import Limits, Sandbox, judge_functions, require
require()
sandbox = Sandbox(Limits(seconds=5))
right = "def solve(x): return x * x"
spy = '''
import os, socket
def solve(x):
    assert not any(name.startswith("SLURM") for name in os.environ) and not os.path.exists("/var")
    try:
        socket.create_connection(("127.0.0.1", 6817), timeout=1)
    except OSError:
        return x * x
'''
for program in (right, spy, "def solve(x): return x"):
    print(judge_functions(program, "assert solve(3) == 9", "", "solve", sandbox))
"""


@pytest.mark.parametrize("user", [None, USER])
def test_programs_are_judged_in_a_job(cluster: Cluster, user: str | None) -> None:
    # another interpreter of the same version for the other user, who may not see this one
    python = sys.executable if user is None else "/usr/bin/python3.11"
    if not Path(python).is_file():
        pytest.skip("no Python of the system's own")
    environment = ENVIRONMENT | {"PYTHONPATH": f"{ROOT / 'workflow'}:{sysconfig.get_path('purelib')}"}
    job = ["srun", "--quiet", "--account=rl", "--nodes=1", "--ntasks=1", "--mem=1000", "--time=2"]
    command = cluster.command(*job, python, "-P", "-c", JUDGE, folder=ROOT, user=user)
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert ended.stdout.count("passed=True") == 2, ended.stdout + ended.stderr
    assert ended.stdout.count("passed=False") == 1
