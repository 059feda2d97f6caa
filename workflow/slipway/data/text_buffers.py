"""The bytes of many texts at once, as Arrow keeps them."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def text_buffers(texts: pa.Array) -> tuple[NDArray[np.int32], pa.Buffer]:
    """Return where each text begins in the bytes of all, [texts + 1], and the bytes, which may go on after that."""
    texts = pa.concat_arrays([texts])  # whose buffers begin with its first text
    _, ends, letters = texts.buffers()
    if not len(texts) or letters is None:
        return np.zeros(len(texts) + 1, dtype=np.int32), pa.py_buffer(b"")
    return np.frombuffer(ends, dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1], letters
