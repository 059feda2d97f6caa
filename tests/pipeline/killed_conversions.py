"""Kills conversions in the middle, and lets a last one finish; test_convert_faults.py runs it.

Arguments: source, target, number of kills. One process imports torch, and forks each conversion before it has any
threads. Prints how many were killed before their manifest was there.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from slipway.convert.to_megatron import convert_megatron
from slipway.manifest import read_manifest, verify_files


def start(source: Path, target: Path) -> int:
    process = os.fork()
    if process == 0:
        try:
            convert_megatron(source, target)
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return process


def main() -> None:
    source, target, kills = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    choose = random.Random(0)
    began = time.monotonic()
    assert os.waitpid(start(source, target.with_name("measure")), 0)[1] == 0
    whole = time.monotonic() - began
    unfinished = 0
    for _ in range(kills):
        process = start(source, target)
        time.sleep(choose.uniform(0, whole))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        manifest = target / "manifest.json"
        if manifest.exists():  # then it vouches for whole files
            verify_files(read_manifest(manifest, "convert_megatron"), target)
            manifest.unlink()
            (target / ".complete.json").unlink()
        else:
            unfinished += 1
    assert os.waitpid(start(source, target), 0)[1] == 0
    print(unfinished)


if __name__ == "__main__":
    main()
