"""Pickles of objects whose classes belong to packages that are not imported to write or read them."""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any


@dataclass(frozen=True)
class Name:
    """A class, function or constant by its module and name."""

    module: str
    name: str

    def __call__(self, *arguments: Any) -> Any:
        """Refuse: only who reads the pickle has it. Here because `pickle` asks whether it can be called."""
        raise TypeError(f"{self.module}.{self.name} is not imported here")

    def __reduce__(self) -> str:
        return self.name


class Call:
    """What a reader of the pickle gets from `function(*arguments)`."""

    def __init__(self, function: Name, *arguments: Any):
        self._reduced = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced


# its methods are in no type stub
_Pickler: Any = pickle._Pickler


class Pickler(_Pickler):  # type: ignore[misc]
    """Writes `Name`s, and the classes in `classes`, as what they stand for.

    The pickler that is written in Python: the one in C imports a class's module to see whether it is there.
    """

    def __init__(self, file: IO[bytes], protocol: int, classes: Mapping[type, Name] | None = None):
        super().__init__(file, protocol)
        self._classes = classes or {}

    def save_global(self, obj: Any, name: str | None = None) -> None:
        """Write a class, function or constant; called by `pickle`."""
        stands_for = obj if isinstance(obj, Name) else self._classes.get(obj) if isinstance(obj, type) else None
        if stands_for is None:
            super().save_global(obj, name)
            return
        if self.proto >= 4:
            self.save(stands_for.module)
            self.save(stands_for.name)
            self.write(pickle.STACK_GLOBAL)
        else:
            self.write(pickle.GLOBAL + f"{stands_for.module}\n{stands_for.name}\n".encode())
        self.memoize(obj)


class Unpickler(pickle.Unpickler):
    """Reads such pickles: gives `known` for what it names, and refuses everything else."""

    def __init__(self, file: IO[bytes], known: Mapping[Name, Any]):
        super().__init__(file)
        self._known = known

    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle names; called by `pickle`."""
        try:
            return self._known[Name(module, name)]
        except KeyError:
            raise pickle.UnpicklingError(f"names {module}.{name}, which does not belong there") from None
