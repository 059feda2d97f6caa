"""Rules of batch arithmetic: prompts -> responses -> ranks -> mini batches -> micro batches."""

import math

from slipway.config.schema import Data, Parallel, Run
from slipway.preflight.findings import Finding, Severity, divisors, nearest
from slipway.preflight.layout import data_parallel_size


def check_batches(name: str, run: Run, parallel: Parallel, data: Data) -> list[Finding]:
    """Return what is wrong with a run's batch sizes on a layout that is valid."""
    grpo = run.grpo
    key = f"runs.{name}.grpo"
    ranks = data_parallel_size(run, parallel)
    mini_prompts = grpo.mini_batch_prompts or grpo.prompts_per_step
    findings = []
    if mini_prompts > grpo.prompts_per_step:
        # verl/workers/config/actor.py:225
        findings.append(
            Finding(
                "R14",
                Severity.ERROR,
                f"{key}.mini_batch_prompts",
                mini_prompts,
                f"is more than prompts_per_step ({grpo.prompts_per_step}).",
                f"Use at most {grpo.prompts_per_step}.",
            )
        )
    elif grpo.prompts_per_step % mini_prompts:
        # verl pads the last mini batch with synthetic samples: trainer/ppo/v1/trainer_base.py:1589
        findings.append(
            Finding(
                "R18",
                Severity.WARNING,
                f"{key}.mini_batch_prompts",
                mini_prompts,
                f"does not divide prompts_per_step ({grpo.prompts_per_step}): verl fills the rest with padding.",
                f"Use {nearest(mini_prompts, divisors(grpo.prompts_per_step))}.",
            )
        )
    responses = mini_prompts * grpo.samples_per_prompt
    if responses % ranks:
        # verl/workers/engine_workers.py:267
        fits = ranks // math.gcd(ranks, grpo.samples_per_prompt)
        below = mini_prompts // fits * fits
        fitting = [prompts for prompts in range(below - 2 * fits, below + 4 * fits, fits) if prompts > 0]
        findings.append(
            Finding(
                "R16",
                Severity.ERROR,
                f"{key}.mini_batch_prompts",
                mini_prompts,
                f"{mini_prompts} prompts x {grpo.samples_per_prompt} samples = {responses} responses do not divide "
                f"over {ranks} data-parallel ranks.",
                f"Use {nearest(mini_prompts, fitting)}.",
            )
        )
        return findings
    findings += _check_micro(f"{key}.micro_batch_size", "R17", grpo.micro_batch_size, responses // ranks, ranks)
    per_step = grpo.prompts_per_step * grpo.samples_per_prompt
    if per_step % ranks == 0:
        log_prob = grpo.log_prob_micro_batch_size or grpo.micro_batch_size
        origin = "log_prob_micro_batch_size" if grpo.log_prob_micro_batch_size else "micro_batch_size"
        if origin == "log_prob_micro_batch_size" or not findings:
            findings += _check_micro(f"{key}.{origin}", "R15", log_prob, per_step // ranks, ranks)
    if grpo.prompts_per_step > data.train:
        # verl's dataloader drops the last, incomplete batch: none is left
        findings.append(
            Finding(
                "S1",
                Severity.ERROR,
                f"{key}.prompts_per_step",
                grpo.prompts_per_step,
                f"data.{run.data} has only {data.train} training problems.",
                f"Use at most {data.train}.",
            )
        )
    if grpo.lr_warmup_steps >= run.steps and grpo.lr_warmup_steps > 0:
        # megatron/core/optimizer_param_scheduler.py:157
        findings.append(
            Finding(
                "R47",
                Severity.ERROR,
                f"{key}.lr_warmup_steps",
                grpo.lr_warmup_steps,
                f"the warm-up is not over when the run ends after {run.steps} steps.",
                f"Use less than {run.steps}.",
            )
        )
    return findings


def arithmetic(run: Run, parallel: Parallel) -> list[tuple[str, int]]:
    """Return the batch arithmetic of a run, one row a quantity."""
    grpo = run.grpo
    ranks = data_parallel_size(run, parallel)
    mini_prompts = grpo.mini_batch_prompts or grpo.prompts_per_step
    per_rank = mini_prompts * grpo.samples_per_prompt // ranks
    return [
        ("prompts a step", grpo.prompts_per_step),
        ("responses a step", grpo.prompts_per_step * grpo.samples_per_prompt),
        ("optimizer steps a step", -(-grpo.prompts_per_step // mini_prompts)),
        ("responses an optimizer step", mini_prompts * grpo.samples_per_prompt),
        ("data-parallel ranks", ranks),
        ("responses a rank and optimizer step", per_rank),
        ("micro batch (responses)", grpo.micro_batch_size),
        ("accumulated micro batches", per_rank // grpo.micro_batch_size),
    ]


def _check_micro(key: str, rule: str, micro: int, per_rank: int, ranks: int) -> list[Finding]:
    if per_rank % micro == 0:
        return []
    # verl/workers/engine/utils.py:125, verl/utils/config.py:124
    return [
        Finding(
            rule,
            Severity.ERROR,
            key,
            micro,
            f"does not divide the {per_rank} responses that each of {ranks} data-parallel rank(s) gets.",
            f"Use {nearest(micro, divisors(per_rank))}.",
        )
    ]
