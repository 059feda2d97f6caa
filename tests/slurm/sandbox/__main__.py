"""Bring the sandbox cluster up or down, and run commands on it."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sandbox.cluster import Cluster
from sandbox.namespaces import SandboxError, inside

ROOT = Path(__file__).resolve().parents[3]
USAGE = """commands:
  up             bring the cluster up (controller `ctl`, nodes n1, n2, ...)
  down           end it, and remove its folder
  run CMD...     run a command on the controller, in the present folder: `run snakemake --profile slurm`
  on NODE CMD..  run a command on a node
  crash NODE     let a node die;  boot NODE: start it again"""


def main() -> int:
    """Read the command line and do it; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=USAGE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        prog="tests/slurm/sandbox",
    )
    parser.add_argument("--state", type=Path, default=Path("/var/tmp/slipway-sandbox"), help="folder of all its files")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=4, help="pretended GPUs a node")
    parser.add_argument("command", choices=("up", "down", "run", "on", "crash", "boot"))
    parser.add_argument("words", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    cluster = Cluster(arguments.state, nodes=arguments.nodes, gpus=arguments.gpus, shared=(ROOT,))
    match arguments.command, arguments.words:
        case "up", []:
            cluster.up()
            print(cluster.ask("sinfo", "-N", "-p", "gpu", "-o", "%N %T %c %m %G"), end="")
        case "down", []:
            cluster.remove()
        case "run", [_, *_] as words:
            return subprocess.run(cluster.command(*words, folder=Path.cwd())).returncode
        case "on", [node, *words] if words:
            return subprocess.run(inside(cluster.living(node), words)).returncode
        case "crash", [node]:
            cluster.crash(node)
        case "boot", [node]:
            cluster.boot(node)
        case _:
            parser.error(f"{arguments.command}: wrong arguments: {' '.join(arguments.words) or 'none'}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SandboxError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        os._exit(130)
