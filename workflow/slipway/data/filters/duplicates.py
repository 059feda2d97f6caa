"""Equal questions, whatever their letter case and white space: the first one stays."""

import numpy as np
from numpy.typing import NDArray


def find(normal: NDArray[np.uint64], usable: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the duplicates among the usable, and which earlier problem each one repeats.

    `normal` has a digest of each question.
    """
    numbers = np.flatnonzero(usable)
    _, first, group = np.unique(normal[numbers], return_index=True, return_inverse=True)
    original = numbers[first[group]]
    repeats = original != numbers
    return numbers[repeats], original[repeats]
