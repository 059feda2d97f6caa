"""Rules of batch arithmetic: prompts -> responses -> ranks -> mini batches -> micro batches."""

import math
from collections.abc import Iterator

from slipway.config.verl import ACTOR, REF, ROLLOUT
from slipway.preflight.findings import Finding, divisors, nearest
from slipway.preflight.subject import MEGATRON, Subject

BATCH = "data.train_batch_size"
MINI = f"{ACTOR}.ppo_mini_batch_size"
MICRO = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
SAMPLES = f"{ROLLOUT}.n"


def check(subject: Subject) -> Iterator[Finding]:
    """Yield what does not divide, what is missing, and what verl would fill with padding."""
    yield from _micro_batches_are_given(subject)
    if subject.train_prompts is not None and (batch := subject.count(BATCH)) and batch > subject.train_prompts:
        # verl's dataloader drops the last, incomplete batch (trainer/ppo/v1/trainer_base.py): none is left
        yield subject.error(
            "S1",
            BATCH,
            f"there are only {subject.train_prompts} training prompts.",
            f"Use at most {subject.train_prompts}.",
        )
    batch, mini, samples = subject.count(BATCH), subject.count(MINI), subject.count(SAMPLES)
    ranks = subject.data_parallel
    if batch is None or mini is None or samples is None:
        return
    if mini > batch:
        # verl/workers/config/actor.py:225; with dynamic batching nothing is raised, and the rest is padding
        tell = subject.warning if subject.is_dynamic else subject.error
        yield tell("R14", MINI, f"is more than the {batch} prompts of a step.", f"Use at most {batch}.")
    elif batch % mini:
        # verl/trainer/ppo/v1/trainer_base.py, _get_required_batch_multiple: padded with synthetic samples
        yield subject.warning(
            "R18",
            MINI,
            f"does not divide the {batch} prompts of a step: verl fills the rest with padding.",
            f"Use {nearest(mini, divisors(batch))}.",
        )
    if ranks is None:
        return
    if mini * samples % ranks:
        # verl/workers/engine_workers.py:267
        fits = ranks // math.gcd(ranks, samples)
        below = mini // fits * fits
        fitting = [prompts for prompts in range(below - 2 * fits, below + 4 * fits, fits) if prompts > 0]
        yield subject.error(
            "R16",
            MINI,
            f"{mini} prompts x {samples} samples = {mini * samples} responses do not divide over {ranks} data-parallel "
            "ranks.",
            f"Use {nearest(mini, fitting)}.",
        )
    elif subject.is_dynamic:
        yield from _by_tokens(subject, batch, mini, samples, ranks)
    else:
        yield from _micro(subject, batch, mini, samples, ranks)


def _micro_batches_are_given(subject: Subject) -> Iterator[Finding]:
    """Exactly one of the two ways of saying how large a micro batch is."""
    # verl/workers/config/actor.py:194, verl/utils/config.py:131-183
    if subject.is_dynamic != (subject.get(f"{ROLLOUT}.log_prob_use_dynamic_bsz") is True):
        # verl/workers/engine_workers.py:616, a bare assert after the reference model is built
        yield subject.error(
            "R21",
            f"{ROLLOUT}.log_prob_use_dynamic_bsz",
            f"the actor's use_dynamic_bsz is {subject.get(f'{ACTOR}.use_dynamic_bsz')!r}; the two must agree.",
            "Leave it out: it follows the actor.",
        )
    if subject.is_dynamic:
        return
    pairs = [(f"{ACTOR}.ppo_micro_batch_size", "actor"), (f"{ROLLOUT}.log_prob_micro_batch_size", "rollout")]
    if subject.has_reference:
        pairs.append((f"{REF}.log_prob_micro_batch_size", "reference"))
    for old, role in pairs:
        new = f"{old}_per_gpu"
        if subject.get(old) is not None and subject.get(new) is not None:
            yield subject.error("R19", old, f"{new} is set too.", "Leave this one out: it is the deprecated one.")
        elif subject.get(old) is not None:
            # the workers read the other one only (verl/workers/engine_workers.py:619-630)
            yield subject.error("R19", old, f"verl's workers read {new} only.", f"Set {new}.")
        elif subject.get(new) is None:
            yield subject.error(
                "R19", new, f"missing: the {role} has no micro batch size.", "Set it, or use_dynamic_bsz=True."
            )


def _micro(subject: Subject, batch: int, mini: int, samples: int, ranks: int) -> Iterator[Finding]:
    """Fixed micro batches divide what a rank gets."""
    micro = subject.count(MICRO)
    if micro is not None:
        per_rank = mini * samples // ranks
        faulty = list(_split(subject, MICRO, micro, per_rank, ranks))
        yield from faulty
        if not faulty and batch * samples % (ranks * micro):
            # verl/utils/config.py:124
            yield subject.error(
                "R15",
                BATCH,
                f"{batch} prompts x {samples} samples = {batch * samples} responses do not divide by {ranks} "
                f"data-parallel ranks x micro batches of {micro}.",
                "Use a multiple of the mini batch.",
            )
    total = _padded(batch, mini, samples, ranks)
    keys = [f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu"]
    if subject.has_reference:
        keys.append(f"{REF}.log_prob_micro_batch_size_per_gpu")
    for key in keys:
        if (size := subject.count(key)) is not None:
            yield from _split(subject, key, size, total, ranks)


def _padded(batch: int, mini: int, samples: int, ranks: int) -> int:
    """Return the responses of a step on a rank: what is left over is padded to whole mini batches on every rank."""
    multiple = math.lcm(ranks, mini * samples)
    return -(-batch * samples // multiple) * multiple // ranks


def _by_tokens(subject: Subject, batch: int, mini: int, samples: int, ranks: int) -> Iterator[Finding]:
    """In an interleaved pipeline the micro batches that hold so many tokens are filled up to rounds of the stages."""
    stages, longest = _rounds(subject), subject.sequence_limit
    context = subject.count(f"{MEGATRON}.context_parallel_size") or 1
    if stages == 1 or longest is None:
        return
    passes = {
        f"{ACTOR}.ppo_max_token_len_per_gpu": mini * samples // ranks,
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu": _padded(batch, mini, samples, ranks),
    }
    for key, responses in passes.items():
        held = (subject.count(key) or 0) * context // longest
        if not held:
            continue  # R20's to say
        micro_batches = -(-responses // held)
        if -(-micro_batches // stages) * stages > responses:
            # verl/utils/seqlen_balancing.py:445
            yield subject.error(
                "R17",
                key,
                f"an interleaved pipeline of {stages} stages takes micro batches by the {stages}; of the {responses} "
                f"responses of a rank, {held} to a micro batch when they are long, there are too few to fill that up.",
                f"Hold more tokens in a micro batch, let a rank have a multiple of {stages} responses, or do without "
                "virtual pipeline.",
            )


def _rounds(subject: Subject) -> int:
    """Return what the number of micro batches is to be a multiple of: the stages of an interleaved pipeline, or 1."""
    # verl/workers/engine/megatron/transformer_impl.py:916: Megatron's group of micro batches is the pipeline size
    layout = subject.layout
    return layout.pipeline if layout is not None and (layout.virtual_pipeline or 1) > 1 else 1


def _split(subject: Subject, key: str, micro: int, per_rank: int, ranks: int) -> Iterator[Finding]:
    """A rank's responses make whole micro batches, and in an interleaved pipeline a multiple of its stages."""
    stages = _rounds(subject)
    if per_rank % micro == 0 and per_rank // micro % stages == 0:
        return
    why = f"does not divide the {per_rank} responses that each of {ranks} data-parallel rank(s) gets"
    if stages > 1:
        why += f" into a multiple of {stages} micro batches, which an interleaved pipeline of {stages} stages needs"
    fitting = [size for size in divisors(per_rank) if per_rank // size % stages == 0]
    remedy = f"Use {nearest(micro, fitting)}." if fitting else "Do without virtual pipeline, or use more responses."
    # verl/workers/engine/utils.py:125
    yield subject.error("R17", key, f"{why}.", remedy)


def arithmetic(subject: Subject) -> list[tuple[str, int | str]]:
    """Return the batch arithmetic of a training without errors, one row a quantity."""
    batch, mini, samples = (subject.count(key) or 1 for key in (BATCH, MINI, SAMPLES))
    ranks = subject.data_parallel or 1
    per_rank = mini * samples // ranks
    rows: list[tuple[str, int | str]] = [
        ("prompts a step", batch),
        ("responses a step", batch * samples),
        ("optimizer steps a step", -(-batch // mini)),
        ("responses an optimizer step", mini * samples),
        ("data-parallel ranks", ranks),
        ("responses a rank and optimizer step", per_rank),
    ]
    if subject.is_dynamic:
        return [*rows, ("micro batch", f"up to {subject.get(f'{ACTOR}.ppo_max_token_len_per_gpu')} tokens a GPU")]
    micro = subject.count(MICRO) or 1
    return [*rows, ("micro batch (responses)", micro), ("accumulated micro batches", per_rank // micro)]
