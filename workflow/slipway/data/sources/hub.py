"""Data sets of a hub, and folders that `datasets` reads or has saved."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets

from slipway.config import schema
from slipway.data.sources.base import Block
from slipway.errors import SlipwayError

ROWS_OF_A_BLOCK = 2000
COMMIT = re.compile(r"[0-9a-f]{40}")


def open_hub(settings: schema.Source, key: str) -> "DatasetSource":
    """Open a hub's data set at one commit, or a folder; it lies in the cache of `datasets`, mapped into memory."""
    path = Path(str(settings.path)).expanduser()
    if path.is_dir():
        return DatasetSource(str(settings.path), _folder(path, settings, key), None)
    name = str(settings.path)
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise SlipwayError(f"{key}.path: {name!r} is no file or folder, and not a hub name (owner/dataset)")
    commit = _commit(name, settings.revision, key)
    return DatasetSource(f"{name}@{commit[:8]}", _load(name, settings, key, commit), commit)


@dataclass(frozen=True)
class DatasetSource:
    """A `datasets.Dataset`; `commit` is the hub's revision that it was read at."""

    title: str
    data: datasets.Dataset
    commit: str | None
    unit: str = "row"
    ability: str | None = None

    def blocks(self) -> list[Block]:
        """Cut into runs of rows."""
        rows = len(self.data)
        return [
            Block(self.title, start, min(start + ROWS_OF_A_BLOCK, rows), start)
            for start in range(0, rows, ROWS_OF_A_BLOCK)
        ]

    def read(self, block: Block) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield row (from 0) and record."""
        columns = self.data[block.start : block.stop]
        for index in range(block.stop - block.start):
            yield block.first + index, {name: values[index] for name, values in columns.items()}

    def identity(self) -> dict[str, Any]:
        """Return the commit, or what `datasets` tells two contents apart by."""
        if self.commit is not None:
            return {"commit": self.commit, "rows": len(self.data)}
        return {"fingerprint": self.data._fingerprint, "rows": len(self.data)}


def _commit(name: str, revision: str | None, key: str) -> str:
    if revision is not None and COMMIT.fullmatch(revision):
        return revision
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        return str(HfApi().dataset_info(name, revision=revision).sha)
    except HFValidationError as error:
        raise SlipwayError(f"{key}.path: {name!r} is no file or folder, and cannot be a hub name ({error})") from None
    except RevisionNotFoundError:
        raise SlipwayError(f"{key}.revision: {name} has no commit, tag or branch {revision!r}") from None
    except RepositoryNotFoundError:
        raise SlipwayError(
            f"{key}.path: {name!r} is neither a file, nor a folder, nor a data set on the hub (a private or gated one "
            "needs `hf auth login`)"
        ) from None
    except Exception as error:  # what the network raises depends on the library below
        wanted = "cannot be asked for its commit" if not isinstance(error, HfHubHTTPError) else "did not answer well"
        raise SlipwayError(
            f"{key}.path: {name!r} is no file or folder, and the hub {wanted} ({type(error).__name__}). Without a "
            "network, fetch it elsewhere with the same HF_HOME and give the full commit as `revision`, or give files."
        ) from None


def _load(name: str, settings: schema.Source, key: str, commit: str) -> datasets.Dataset:
    try:
        return datasets.load_dataset(name, settings.config, split=settings.split or "train", revision=commit)
    except Exception as error:
        raise SlipwayError(f"{key}: {name!r} at {commit}: {_reason(error)}") from None


def _folder(path: Path, settings: schema.Source, key: str) -> datasets.Dataset:
    try:
        if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
            saved = datasets.load_from_disk(str(path))
            if isinstance(saved, datasets.Dataset):
                return saved
            split = settings.split or "train"
            if split not in saved:
                raise SlipwayError(f"{key}.split: {path} has no split {split!r}; it has {', '.join(saved)}")
            return saved[split]
        return datasets.load_dataset(str(path), settings.config, split=settings.split or "train")
    except SlipwayError:
        raise
    except Exception as error:
        raise SlipwayError(f"{key}: {path}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return f"cannot be read by datasets ({type(error).__name__}: {next(iter(str(error).splitlines()), '')})"
