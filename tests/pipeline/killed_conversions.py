"""Kills conversions in the middle, and lets a last one finish; test_convert_faults.py runs it.

Arguments: source, target, number of kills. One process imports torch and forks all work. It does none itself: BLAKE3's
threads would not be there in the forks, which would wait for them. Prints how many conversions were killed before their
manifest was there.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from slipway.convert.to_megatron import convert_megatron
from slipway.manifest import read_manifest, verify_files


def fork(work: Callable[[], object]) -> int:
    process = os.fork()
    if process == 0:
        try:
            work()
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return process


def finish(work: Callable[[], object]) -> None:
    assert os.waitpid(fork(work), 0)[1] == 0


def main() -> None:
    source, target, kills = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    manifest = target / "manifest.json"
    choose = random.Random(0)
    began = time.monotonic()
    finish(lambda: convert_megatron(source, target.with_name("measure")))
    whole = time.monotonic() - began
    unfinished = 0
    for _ in range(kills):
        process = fork(lambda: convert_megatron(source, target))
        time.sleep(choose.uniform(0, whole))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        if manifest.exists():  # then it vouches for whole files
            finish(lambda: verify_files(read_manifest(manifest, "convert_megatron"), target))
            manifest.unlink()
            (target / ".complete.json").unlink()
        else:
            unfinished += 1
    finish(lambda: convert_megatron(source, target))
    print(unfinished)


if __name__ == "__main__":
    main()
