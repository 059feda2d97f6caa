"""`grpo.micro_batch_size: auto`: as many tokens a pass as a GPU holds by forecast; on the CPU some responses."""

from collections.abc import Callable
from dataclasses import replace

from slipway.config.schema import Grpo
from slipway.config.verl import MicroBatches
from slipway.models.layout import Layout
from slipway.preflight.findings import divisors
from slipway.preflight.planning.calibration import MEMORY_BAND
from slipway.preflight.planning.memory import forecast
from slipway.preflight.planning.workload import Workload, workload_of
from slipway.preflight.subject import Subject

# One pass over so many tokens keeps a GPU busy whatever the model; more only take memory. verl's default where no
# forecast can be made.
MOST_TOKENS = 65_536
UNKNOWN_TOKENS = 16_384
# Passes an update is made of in a pipeline, as a multiple of its stages: fewer leave the stages waiting.
PASSES_A_STAGE = 4
MOST_RESPONSES_ON_CPU = 64


def least_micro_batches(grpo: Grpo) -> MicroBatches:
    """Return the smallest that hold the longest sequence: what a layout is chosen with."""
    longest = grpo.max_prompt_length + grpo.max_response_length
    return MicroBatches(longest, longest, by_tokens=True)


def micro_batches_on_cpu(grpo: Grpo, data_parallel: int) -> MicroBatches:
    """Return the most responses a pass, up to `MOST_RESPONSES_ON_CPU`, that divide what a rank has of an update."""
    prompts = grpo.mini_batch_prompts or grpo.prompts_per_step
    own = max(1, prompts * grpo.samples_per_prompt // data_parallel)
    most = max(size for size in divisors(own) if size <= MOST_RESPONSES_ON_CPU)
    return MicroBatches(most, most)


def largest_micro_batches(subject: Subject) -> MicroBatches | None:
    """Return the most tokens a GPU and pass that fit even where the forecast is too low, within its band.

    At least the longest sequence, at most `MOST_TOKENS` and what a rank has to do. None where lengths or batches
    cannot be read, which the rules report.
    """
    work, layout, gpus = workload_of(subject), subject.layout, subject.count("trainer.n_gpus_per_node")
    if work is None or layout is None or gpus is None or subject.data_parallel is None:
        return None
    model, memory = subject.model, subject.gpu_memory
    if model is None or memory is None:
        return _a_gpu(max(UNKNOWN_TOKENS, work.length), max(UNKNOWN_TOKENS, work.length), layout)

    def fits(phase: str, changed: Workload) -> bool:
        phases = {one.name: one for one in forecast(model, layout, changed, memory, gpus).phases}
        return phases[phase].total * (1 + MEMORY_BAND) <= memory

    update = _largest(
        work.length,
        _most(work.mini_batch * work.samples, work.length, layout),
        lambda tokens: fits("update", replace(work, micro_tokens=tokens)),
    )
    log_prob = _largest(
        work.length,
        _most(work.responses, work.length, layout),
        lambda tokens: fits("log-probabilities", replace(work, log_prob_tokens=tokens)),
    )
    return _a_gpu(update, log_prob, layout)


def _most(responses: int, length: int, layout: Layout) -> int:
    """Return the tokens beyond which a pass gains nothing: of all ranks' `responses`, those of one rank and pass."""
    passes = PASSES_A_STAGE * layout.pipeline if layout.pipeline > 1 else 1
    own = max(1, responses // layout.data // passes)
    return max(length, min(MOST_TOKENS, own * length))


def _largest(least: int, most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from `least` to `most` that fits, `least` where none does; more never fits better."""
    while least < most:
        middle = (least + most + 1) // 2
        if fits(middle):
            least = middle
        else:
            most = middle - 1
    return least


def _a_gpu(update: int, log_prob: int, layout: Layout) -> MicroBatches:
    # verl multiplies by the context-parallel size what it is told of one GPU
    return MicroBatches(-(-update // layout.context), -(-log_prob // layout.context), by_tokens=True)
