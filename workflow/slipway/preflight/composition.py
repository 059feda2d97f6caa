"""Config and tokenizer, judged by verl's own code: validator, dataclasses, agent loop. Imports verl (seconds)."""

import contextlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipway.models.tokenizer import load_tokenizer
from slipway.preflight.findings import Finding, Severity


def check_with_verl(run: str, resolved: Mapping[str, Any]) -> list[Finding]:
    """Return what verl 0.9.1 itself has to say against a resolved config.

    `validate_config` builds only the actor's dataclass; the others are built minutes later by the workers, so
    they are built here too.
    """
    from omegaconf import OmegaConf
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    config = OmegaConf.create(dict(resolved))
    findings = []

    def attempt(key: str, check: Any) -> None:
        said = io.StringIO()
        try:
            # verl prints to standard output; a stage's output is its findings
            with contextlib.redirect_stdout(said):
                check()
        except Exception as error:  # whatever verl raises would have ended the training
            why = f"verl refuses it: {type(error).__name__}: {error}"
            findings.append(Finding("verl", Severity.ERROR, f"runs.{run}: {key}", None, why))
        for line in said.getvalue().splitlines():
            if line.startswith(("WARNING", "NOTICE")):
                findings.append(Finding("verl", Severity.NOTE, f"runs.{run}: {key}", None, line))

    attempt(
        "validate_config",
        lambda: validate_config(
            config,
            use_reference_policy=need_reference_policy(config),
            use_critic=need_critic(config),
        ),
    )
    # of `ref`, workers build the engine's part only (verl/workers/engine_workers.py)
    for key in ("actor_rollout_ref.ref.megatron", "actor_rollout_ref.rollout", "algorithm"):
        attempt(key, lambda key=key: omega_conf_to_dataclass(OmegaConf.select(config, key)))
    return findings


def check_turns_with_verl(model: str, folder: Path) -> list[Finding]:
    """Return why verl 0.9.1's agent loop cannot tell the turns of a model's chat by the tokens that end them, if so.

    It goes by the `model_type` in `config.json` alone, and fails at every prompt of the first rollout. The tokenizer
    is one that loads.
    """
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    model_type = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    try:
        create_continuous_token_builder(load_tokenizer(folder), hf_model_type=model_type)
    except ValueError as error:
        why = f"verl's agent loop refuses the tokenizer of a model whose model_type is {model_type!r}: {error}."
        remedy = "Use a model whose tokenizer has that token."
        return [Finding("S25", Severity.ERROR, f"models.{model}", None, why, remedy)]
    return []
