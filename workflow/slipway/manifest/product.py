"""The life of a rule's product: own the folder, skip what is done already, publish the manifest last.

A product is a folder plus the small manifest that Snakemake sees as the rule's output. Snakemake deletes that
output before a rule runs and reruns rules whose result would be the same; therefore a copy of the manifest stays
in the folder as `.complete.json`, a file Snakemake does not know. A stage that finds it equal in `inputs` and whole
in its files writes the manifest again and does no work.
"""

import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from slipway.errors import SlipwayError
from slipway.manifest import files, provenance
from slipway.manifest.lock import FolderLock

FORMAT = 1
RECORD = ".complete.json"
LOCK = ".lock"

logger = logging.getLogger(__name__)


class ManifestError(SlipwayError):
    """A manifest is missing, damaged, or does not match its files."""


@dataclass(frozen=True)
class FileEntry:
    """One file that a manifest vouches for; `path` is relative to the product's folder."""

    path: str
    size: int
    blake3: str


@dataclass(frozen=True)
class Manifest:
    """What a stage made, from what.

    Holds nothing that differs between two equal pieces of work: no dates, hosts or durations (they are in the
    folder's `provenance.json`), no absolute paths.
    """

    stage: str
    fingerprint: str
    inputs: dict[str, Any]
    files: list[FileEntry] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def digest(self) -> str:
        """Digest of the manifest itself: what later stages name as their input."""
        return files.fingerprint(asdict(self))

    def hash_of(self, path: str) -> str:
        """Return the recorded BLAKE3 digest of one file."""
        for entry in self.files:
            if entry.path == path:
                return entry.blake3
        raise ManifestError(f"the manifest of {self.stage} lists no file {path!r}")


def read_manifest(path: Path, stage: str) -> Manifest:
    """Read the manifest at `path` and check that `stage` wrote it.

    Raises `ManifestError` when the file is missing, is not a manifest, or belongs to another stage.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ManifestError(f"{path}: missing; rule {stage} writes it") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path}: not a manifest ({error}); delete it and run {stage} again") from None
    if not isinstance(content, dict):
        raise ManifestError(f"{path}: not a manifest (no JSON object); delete it and run {stage} again")
    if content.get("format") != FORMAT or content.get("stage") != stage:
        raise ManifestError(
            f"{path}: is a manifest of stage {content.get('stage')!r}, format {content.get('format')!r}; expected "
            f"stage {stage!r}, format {FORMAT}. Delete it and run {stage} again."
        )
    try:
        return Manifest(**content | {"files": [FileEntry(**entry) for entry in content["files"]]})
    except (KeyError, TypeError) as error:
        raise ManifestError(f"{path}: not a whole manifest ({error!r}); delete it and run {stage} again") from None


def verify_files(manifest: Manifest, folder: Path, hashes: bool = True) -> None:
    """Check that every file of `manifest` is in `folder` with the recorded size (and hash)."""
    for entry in manifest.files:
        path = folder / entry.path
        if not path.is_file():
            raise ManifestError(f"{path}: missing, though the manifest of {manifest.stage} lists it")
        if path.stat().st_size != entry.size:
            raise ManifestError(
                f"{path}: {path.stat().st_size} bytes, but the manifest of {manifest.stage} says {entry.size}"
            )
        if hashes and files.hash_file(path) != entry.blake3:
            raise ManifestError(f"{path}: content differs from what the manifest of {manifest.stage} recorded")


class Product:
    """A product that this process owns; made by `open_product`."""

    def __init__(self, stage: str, manifest_path: Path, folder: Path, inputs: dict[str, Any]):
        self.stage = stage
        self.manifest_path = manifest_path
        self.folder = folder
        self.inputs = inputs
        self.fingerprint = files.fingerprint({"stage": stage, "inputs": inputs})
        self._started = time.time()
        self._surroundings: Future[dict[str, Any]] | None = None

    def with_inputs(self, inputs: dict[str, Any]) -> "Product":
        """Return the product as made from other inputs, for a stage that learns them from the folder it owns."""
        return Product(self.stage, self.manifest_path, self.folder, inputs)

    def completed(self) -> Manifest | None:
        """Return the manifest of the work recorded as complete in the folder, whatever its inputs were."""
        record = self.folder / RECORD
        if not record.is_file():
            return None
        try:
            return read_manifest(record, self.stage)
        except ManifestError:
            return None

    def restore(self) -> bool:
        """Publish again what is complete and was made from equal inputs; return whether that was so."""
        done = self.completed()
        if done is None or done.fingerprint != self.fingerprint:
            self._look_around()
            return False
        try:
            verify_files(done, self.folder)
        except ManifestError as error:
            logger.warning("%s; making it again", error)
            self._look_around()
            return False
        files.write_text(self.manifest_path, (self.folder / RECORD).read_text(encoding="utf-8"))
        logger.info("%s: nothing to do, %s is complete and its inputs have not changed", self.stage, self.folder)
        return True

    def publish(
        self, paths: Iterable[Path], facts: dict[str, Any], digests: Mapping[Path, str] | None = None
    ) -> Manifest:
        """Record the work as complete and write the manifest that Snakemake waits for, in this order.

        `paths` are files below the folder, which are on the disk before the manifest is; `facts` is JSON that later
        stages and the report read. `digests` are of files that were hashed since they were written.
        """
        digests = digests or {}
        listed = sorted(paths)
        with files.syncing((*listed, *{path.parent for path in listed})):
            entries = [
                FileEntry(
                    str(path.relative_to(self.folder)), path.stat().st_size, digests.get(path) or files.hash_file(path)
                )
                for path in listed
            ]
        manifest = Manifest(self.stage, self.fingerprint, self.inputs, entries, facts)
        surroundings = self._surroundings.result() if self._surroundings else provenance.surroundings()
        provenance.write_sidecar(self.folder / "provenance.json", self.stage, self._started, surroundings)
        files.write_json(self.folder / RECORD, asdict(manifest))
        files.write_json(self.manifest_path, asdict(manifest))
        return manifest

    def _look_around(self) -> None:
        """Find out code and packages while the work goes on, and as they are now that it begins."""
        pool = ThreadPoolExecutor(1)
        self._surroundings = pool.submit(provenance.surroundings)
        pool.shutdown(wait=False)


@contextmanager
def open_product(
    stage: str, manifest_path: Path, folder: Path, inputs: dict[str, Any], wait_seconds: float = 3600.0
) -> Iterator[Product]:
    """Own `folder` while `stage` works in it.

    `inputs` is JSON with everything the product depends on: settings, digests of input manifests, and the
    stage's own `VERSION`, which is raised when the same inputs would give another product. A second process waits
    up to `wait_seconds` for the first, and then finds its work done.
    """
    with FolderLock(folder / LOCK, f"stage {stage}", wait_seconds):
        yield Product(stage, manifest_path, folder, inputs)
