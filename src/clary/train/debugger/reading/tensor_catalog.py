"""The tensors of a trial by name, and a cache of their small values."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from clary.train.debugger.files import STEPS, Files, step_file
from clary.train.debugger.reading.saved_tensor import Tensor
from clary.train.debugger.tensor_files import StepIndex, TensorEntry, read_values

_KEPT_BYTES = 4096  # largest cached value in bytes; losses are read repeatedly


class TensorCatalog:
    """The tensors seen in files.

    Args:
        make_tensor: makes the tensor with a name.
    """

    def __init__(self, files: Files, make_tensor: Callable[[str], Tensor]) -> None:
        self.by_name: dict[str, Tensor] = {}
        self._files, self._make_tensor = files, make_tensor
        self._aliases: dict[str, str] = {}
        self._kept: dict[tuple[int, str, str], bytes] = {}  # (global step, worker, name) -> value

    def take(self, index: StepIndex) -> None:
        """Add the tensors of a worker's file of a step."""
        for entry in index.tensors.values():
            if entry.name not in self.by_name:
                self.by_name[entry.name] = self._make_tensor(entry.name)
            self.by_name[entry.name].add(index.step, index.worker, entry)
            if entry.alias:
                self._aliases[entry.name] = entry.alias

    def forget(self, worker: str, indexes: Iterable[StepIndex]) -> None:
        """Remove the tensors of a worker's files."""
        self._kept = {key: values for key, values in self._kept.items() if key[1] != worker}
        for index in indexes:
            for entry in index.tensors.values():
                self.by_name[entry.name].remove(index.step, worker)

    def alias(self, name: str) -> str:
        """Return the other name that expressions match, or an empty string."""
        return self._aliases.get(name, "")

    def read(self, index: StepIndex, entry: TensorEntry) -> bytes:
        """Return a tensor's bytes. Raises: TensorFileError, OSError."""
        key = (index.step, index.worker, entry.name)
        if key in self._kept:
            return self._kept[key]
        values = read_values(self._files, f"{STEPS}/{step_file(index.step, index.worker)}", index, entry)
        if len(values) <= _KEPT_BYTES:
            self._kept[key] = values
        return values
