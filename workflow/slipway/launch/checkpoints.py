"""Which of verl's checkpoints are there, and which are whole."""

import shutil
from pathlib import Path

PREFIX = "global_step_"
# verl writes this file after a checkpoint is complete, and resumes from the step that it names.
LATEST = "latest_checkpointed_iteration.txt"


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
