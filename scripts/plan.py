"""Which parallel layouts a model can be trained with on so many GPUs, fastest first, and why the others are out.

Needs neither a GPU nor torch. Times are a roofline for ranking layouts, every response as long as --response; memory
is forecast for the GPU that needs most.
"""

import argparse
import json
import sys
from dataclasses import asdict

from slipway.cli import run
from slipway.errors import SlipwayError
from slipway.models.architecture import Architecture
from slipway.models.known import find_dimensions, known_models
from slipway.models.sizes import model_parameters
from slipway.preflight.planning.calibration import GIB, MEMORY_BAND
from slipway.preflight.planning.hardware import GPUS, gpu_named
from slipway.preflight.planning.in_words import describe, settings, why_first
from slipway.preflight.planning.search import Candidate, Machine, Ranking, plan_layouts
from slipway.preflight.planning.workload import Workload


def main() -> None:
    """Read the command line and print the ranking; ends with status 1 when nothing fits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help=f"folder with a config.json, or one of {', '.join(known_models())}")
    parser.add_argument("--gpus", type=positive, required=True, help="GPUs in all")
    parser.add_argument("--gpus-per-node", type=positive, help="default: 8, or all where they are fewer")
    parser.add_argument("--gpu", default="H100-80GB", help=f"one of {', '.join(GPUS)} (%(default)s)")
    parser.add_argument("--prompt", type=positive, default=1024, help="longest prompt, tokens (%(default)s)")
    parser.add_argument("--response", type=positive, default=4096, help="longest response, tokens (%(default)s)")
    parser.add_argument("--prompts", type=positive, default=512, help="prompts a step (%(default)s)")
    parser.add_argument("--samples", type=positive, default=8, help="responses a prompt (%(default)s)")
    parser.add_argument("--mini-batch", type=positive, help="prompts an optimizer step; default: all of a step")
    parser.add_argument("--no-reference", action="store_true", help="train without the KL loss's reference model")
    parser.add_argument("--top", type=positive, default=10, help="layouts to show (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    arguments = parser.parse_args()
    per_node = arguments.gpus_per_node or min(8, arguments.gpus)
    if arguments.gpus % per_node:
        raise SlipwayError(f"--gpus {arguments.gpus}: no multiple of the {per_node} GPUs of a node (--gpus-per-node)")
    if (arguments.mini_batch or 1) > arguments.prompts:
        raise SlipwayError(f"--mini-batch {arguments.mini_batch}: more than the {arguments.prompts} prompts of a step")
    machine = Machine(arguments.gpus // per_node, per_node, gpu_named(arguments.gpu))
    work = Workload(
        prompts=arguments.prompts,
        samples=arguments.samples,
        mini_batch=arguments.mini_batch or arguments.prompts,
        prompt_length=arguments.prompt,
        response_length=arguments.response,
        micro_tokens=arguments.prompt + arguments.response,
        log_prob_tokens=arguments.prompt + arguments.response,
        has_reference=not arguments.no_reference,
    )
    model = find_dimensions(arguments.model)
    for limit, what in ((model.max_positions, "positions end at"), (model.window, "layers attend to the last")):
        if limit is not None and work.length > limit:
            raise SlipwayError(f"--prompt and --response: {work.length} tokens together; the model's {what} {limit}")
    ranking = plan_layouts(model, machine, work)
    if arguments.json:
        print(
            json.dumps(
                {
                    "fitting": [as_plain(one, model) for one in ranking.fitting[: arguments.top]],
                    "rejected": [asdict(one) for one in ranking.rejected],
                },
                indent=2,
            )
        )
    else:
        parameters = model_parameters(model).total
        print(f"{arguments.model}: {parameters:,} parameters on {arguments.gpus} x {machine.gpu.name}\n")
        tell(ranking, model, machine, arguments.top)
    if not ranking.fitting:
        sys.exit(1)


def positive(text: str) -> int:
    """Return a whole number above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not above 0")
    return value


def as_plain(candidate: Candidate, model: Architecture) -> dict[str, object]:
    """Return a candidate as JSON: sizes, settings, bytes and seconds."""
    return {
        "layout": asdict(candidate.layout) | {"data": candidate.layout.data},
        "micro_batch": candidate.work.micro_responses,
        "rollout_tensor": candidate.work.rollout_tensor,
        "settings": settings(candidate, model),
        "seconds": candidate.time.parts() | {"total": candidate.time.total},
        "gpu_bytes": {phase.name: phase.total for phase in candidate.memory.phases},
        "tight": candidate.tight,
    }


def tell(ranking: Ranking, model: Architecture, machine: Machine, top: int) -> None:
    """Print the ranking for a person."""
    memory = machine.gpu.memory
    if ranking.fitting:
        print(f"{len(ranking.fitting)} layouts fit; seconds a step, and GiB a GPU at the peak (+-{MEMORY_BAND:.0%}):\n")
        widest = max(len(describe(one.layout)) for one in ranking.fitting[:top])
        for place, one in enumerate(ranking.fitting[:top], start=1):
            peak = one.memory.peak
            left = (memory - peak.total) / GIB
            print(
                f"{place:3}. {describe(one.layout):{widest}}  {one.time.total:8.1f} s  {peak.total / GIB:6.1f} GiB in "
                f"{peak.name}, {left:.1f} left{' (tight)' if one.tight else ''}"
            )
        first = ranking.fitting[0]
        print(f"\nThe first one: {why_first(ranking)}")
        parts = ", ".join(f"{part} {seconds:.1f}" for part, seconds in first.time.parts().items() if seconds >= 0.05)
        print(f"Its step, s: {parts}.")
        host = sum(first.memory.host.values()) / GIB
        print(f"Host memory of a node: {host:.0f} GiB; a checkpoint: {first.memory.checkpoint / GIB:.0f} GiB.")
        print("Its settings:")
        for line in settings(first, model):
            print(f"  {line}")
    else:
        print("Nothing fits.")
    if ranking.rejected:
        print("\nOut:")
        for one in ranking.rejected:
            print(f"  TP {one.tensor} PP {one.pipeline}: {one.why}")


if __name__ == "__main__":
    run(main)
