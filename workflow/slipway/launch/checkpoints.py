"""Which of verl's checkpoints are there, which are whole, and which go.

verl 0.9.1 would remove old ones itself, but only those that the same process has written: after a resume the earlier
ones stay for ever, and it knows of none that has to be kept.
"""

import shutil
from collections.abc import Collection
from pathlib import Path

PREFIX = "global_step_"
# verl writes this file after a checkpoint is complete, and resumes from the step that it names.
LATEST = "latest_checkpointed_iteration.txt"
# What a checkpoint holds besides the weights.
TRAINING_STATE = (Path("actor/optimizer"), Path("actor/extra"))
# Name of a checkpoint that is being removed; the removal of a large one takes a while, and may be interrupted.
REMOVED = "removed_"


def latest_step(folder: Path) -> int:
    """Return the step of the newest complete checkpoint in `folder`; 0 when there is none."""
    try:
        step = int((folder / LATEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return 0
    return step if (folder / f"{PREFIX}{step}").is_dir() else 0


def step_folder(folder: Path, step: int) -> Path:
    """Return the folder of the checkpoint of `step`."""
    return folder / f"{PREFIX}{step}"


def saved_steps(folder: Path) -> list[int]:
    """Return the steps of the complete checkpoints in `folder`, of which some may hold the weights alone."""
    newest = latest_step(folder)
    steps = (path.name.removeprefix(PREFIX) for path in folder.glob(f"{PREFIX}*") if (path / "actor").is_dir())
    return sorted(int(step) for step in steps if step.isdigit() and int(step) <= newest)


def remove_old(folder: Path, newest: int, weights_of: Collection[int] = ()) -> list[int]:
    """Keep the `newest` complete checkpoints, and of older ones in `weights_of` the weights; return removed steps.

    What is older than the newest complete checkpoint is never written again, so this may be done while verl saves.
    """
    for path in folder.glob(f"{REMOVED}*"):
        shutil.rmtree(path, ignore_errors=True)
    removed = []
    for step in saved_steps(folder)[:-newest]:
        path = step_folder(folder, step)
        if step in weights_of:
            for part in TRAINING_STATE:
                shutil.rmtree(path / part, ignore_errors=True)
        else:
            # first under another name, so that none that is half removed is taken for whole
            shutil.rmtree(path.rename(folder / f"{REMOVED}{path.name}"), ignore_errors=True)
            removed.append(step)
    return removed


def remove_unfinished(folder: Path) -> list[int]:
    """Remove checkpoints newer than the newest complete one: a killed job was writing them. Return their steps."""
    newest = latest_step(folder)
    removed = []
    for path in folder.glob(f"{PREFIX}*"):
        step = path.name.removeprefix(PREFIX)
        if path.is_dir() and step.isdigit() and int(step) > newest:
            shutil.rmtree(path)
            removed.append(int(step))
    return sorted(removed)


def index_files(folder: Path) -> list[Path]:
    """Return the small files of a checkpoint that say what is in the large ones."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and path.name in (".metadata", "metadata.json", "common.pt", "config.json", "data.pt")
    )
