"""Where a model's files are, and what tells two models apart without reading them whole."""

import os
from pathlib import Path
from typing import Any

from blake3 import blake3

from slipway.config.paths import ResultPaths
from slipway.config.schema import Model
from slipway.errors import SlipwayError
from slipway.manifest import hash_file
from slipway.models.weights import INDEX, read_header, weight_files

# What of a hub's repository is a model: weights in safetensors, configs and tokenizer.
HUB_FILES = ["model*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken"]

# Each weight file is sampled at so many places, so many bytes each: a trained weight changes everywhere.
SAMPLES = 16
SAMPLE_BYTES = 64 * 1024


def local_folder(model: Model, name: str, paths: ResultPaths) -> Path:
    """Return the folder with the Hugging Face files of `models.<name>`; a hub model is fetched first.

    Hub models go to Hugging Face's own cache (`HF_HOME`), and `results/models/<name>/hf` becomes a link to it, since
    the config of verl that names the folder is written before anything is fetched. Raises `SlipwayError` when the
    folder does not exist or the hub does not give the model.
    """
    if model.path is None:
        return paths.hf_model(name)
    folder = Path(model.path).expanduser()
    if folder.is_dir():
        if model.revision is not None:
            raise SlipwayError(
                f"models.{name}.revision: {model.revision!r} belongs to a hub model, but {model.path!r} is a folder; "
                "remove the revision"
            )
        return folder
    if not is_hub_name(model.path):
        raise SlipwayError(f"models.{name}.path: {model.path!r} is no folder, and not a hub name (owner/model)")
    return _link(paths.hf_model(name), _fetch(model.path, model.revision, f"models.{name}.path"))


def is_hub_name(path: str) -> bool:
    """Return whether a path of the config is a hub's `owner/name`: nothing on this machine is called so."""
    # `package:<name>/<file>` has a colon, which no hub name holds
    named = path.count("/") == 1 and not path.startswith((".", "/", "~")) and ":" not in path
    return named and not Path(path).exists()


def hub_revision(folder: Path) -> str | None:
    """Return the commit of a model in Hugging Face's cache (`snapshots/<commit>`); None: any other folder."""
    place = folder.resolve()
    return place.name if place.parent.name == "snapshots" else None


def source_fingerprint(folder: Path) -> dict[str, Any]:
    """Return JSON that differs between models that differ, from a few megabytes of each file.

    Config and index are hashed whole; of each weight file the header, the size and `SAMPLES` places.
    """
    small = [name for name in ("config.json", INDEX) if (folder / name).is_file()]
    return {
        "files": {name: hash_file(folder / name) for name in small},
        "weights": {name: _sample(folder / name) for name in weight_files(folder)},
    }


def check_unchanged(folder: Path, before: dict[str, Any]) -> None:
    """Raise `SlipwayError` when a model is no longer the one whose `source_fingerprint` was `before`.

    Files that are replaced one by one make a model of both while it is read, which no comparison with it shows.
    """
    if source_fingerprint(folder) != before:
        raise SlipwayError(f"{folder}: the model changed while it was read; leave it alone, and do this again")


def content_fingerprint(path: Path) -> str:
    """Return a digest of a file, or of all below a folder, that a change of content changes, whatever their size.

    Sampled as weights are: a line that changes within a large file and keeps its length may go unnoticed here, not
    by the rule itself.
    """
    digest = blake3()
    for file in sorted(item for item in path.rglob("*") if item.is_file()) if path.is_dir() else [path]:
        size = file.stat().st_size
        digest.update(f"{file.name}\n{size}\n".encode())
        _sample_into(digest, file, size)
    return str(digest.hexdigest())


def _link(link: Path, folder: Path) -> Path:
    """Make `link` point to `folder`; return `link`."""
    link.parent.mkdir(parents=True, exist_ok=True)
    draft = link.with_name(f".{link.name}.{os.getpid()}")
    draft.symlink_to(folder.absolute())
    draft.replace(link)
    return link


def _sample(path: Path) -> dict[str, Any]:
    digest = blake3(read_header(path))
    size = path.stat().st_size
    _sample_into(digest, path, size)
    return {"size": size, "samples": digest.hexdigest()}


def _sample_into(digest: Any, path: Path, size: int) -> None:
    with path.open("rb") as file:
        for number in range(SAMPLES):
            file.seek(max(0, size - SAMPLE_BYTES) * number // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))


def _fetch(repository: str, revision: str | None, key: str) -> Path:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    wanted = f"{key}: {repository!r}" + (f" at revision {revision!r}" if revision else "")
    try:
        # offline, a commit that an older huggingface_hub fetched is found in this way only
        local = constants.HF_HUB_OFFLINE
        folder = snapshot_download(repository, revision=revision, allow_patterns=HUB_FILES, local_files_only=local)
        return Path(folder)
    except GatedRepoError:
        raise SlipwayError(f"{wanted} is gated: accept its terms on the hub, then `hf auth login`") from None
    except RevisionNotFoundError:
        raise SlipwayError(f"{wanted} does not exist: the model has no such commit, tag or branch") from None
    except RepositoryNotFoundError:
        raise SlipwayError(
            f"{wanted} is neither a folder nor a model on the hub (a private one needs `hf auth login`)"
        ) from None
    except HFValidationError as error:
        raise SlipwayError(f"{key}: {repository!r} is no folder, and cannot be a hub name ({error})") from None
    except (OfflineModeIsEnabled, LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise SlipwayError(
            f"{wanted} is not in Hugging Face's cache and cannot be fetched ({type(error).__name__}: "
            f"{str(error).splitlines()[0]}). Fetch it where there is a network (`hf download {repository}`), with the "
            "same HF_HOME, or give a folder."
        ) from None
