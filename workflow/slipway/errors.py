"""The one exception that means "the user can mend this", and what the file system refuses in its words."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

_FULL = "free some space there; the same command then continues"
_DENIED = "give yourself the right to read and write there, or work in another folder"
_IN_THE_WAY = "a file stands where a folder belongs, or a folder where a file does: move it away, or name another"
_REMEDIES = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: _DENIED,
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EISDIR: _IN_THE_WAY,
    errno.ENOTDIR: _IN_THE_WAY,
}


class SlipwayError(Exception):
    """A fault with a message for the user: what (key or file), its value, why, and what works instead.

    Scripts print the message alone, without a traceback, and exit with status 1.
    """


@contextmanager
def disk_faults_explained() -> Iterator[None]:
    """Raise `SlipwayError` instead of an `OSError` that says what a user can mend: a full disk, a folder's rights."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0)
        if remedy is None:
            raise
        raise SlipwayError(f"{error.filename or 'a file'}: {error.strerror}; {remedy}") from None
