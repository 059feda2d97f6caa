"""Manifests: atomic files, hashes, ownership of folders, provenance.

Everything that stages need is exported here.
"""

from slipway.manifest.files import (
    atomic_path,
    fingerprint,
    hash_file,
    hashing,
    syncing,
    write_if_changed,
    write_json,
    write_text,
)
from slipway.manifest.lock import FolderLock, LockHeldError, is_running, process_identity
from slipway.manifest.product import (
    RECORD,
    FileEntry,
    Manifest,
    ManifestError,
    Product,
    open_product,
    read_manifest,
    verify_files,
)

__all__ = [
    "RECORD",
    "FileEntry",
    "FolderLock",
    "LockHeldError",
    "Manifest",
    "ManifestError",
    "Product",
    "atomic_path",
    "fingerprint",
    "hash_file",
    "hashing",
    "is_running",
    "open_product",
    "process_identity",
    "read_manifest",
    "syncing",
    "verify_files",
    "write_if_changed",
    "write_json",
    "write_text",
]
