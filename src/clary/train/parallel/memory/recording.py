"""Recording of parameters' initialisation while a model is made, and replay for chosen parameters.

Where: `delayed` records through the modes of `recording_modes`, and replays once this rank's modules are known.

[Note: recorded operations] While a recording is active, every operation that makes or changes a tensor is recorded:
operator, arguments, and for random operations the earlier state of the generator. Parameters are made on the meta
device, and operations that read or write them are only recorded, not computed. All other operations are computed as
usual, so buffers and other values that a constructor reads are real. Entries refer to storages, not tensors: creating a
view needs no entry, since a view is size, stride and offset.

[Note: random numbers] Initialisation draws its random numbers at once, into memory that is freed afterwards, so later
code draws the same numbers as without delay; the largest parameter bounds this memory. A replay restores the
generator's recorded state. So each parameter can be replayed alone, bitwise equal to its value without delay.

[Note: values that are read] If a constructor reads the result of an operation (`item`, `nonzero`), the operation's
arguments are replayed up to that point and the operation is computed.
Source: torchdistX, "Deferred Module Initialization", for the idea of recording operators to run them later.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree

from clary.train.parallel.errors import ParallelError


class DelayedInitializationError(ParallelError):
    """Delayed initialisation cannot produce the values that ordinary initialisation would give a parameter."""


@dataclass(frozen=True)
class _Place:
    """A storage and a view of it, in place of a tensor among recorded arguments."""

    storage: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device

    def in_storage(self, storage: torch.UntypedStorage) -> torch.Tensor:
        return torch.empty(0, dtype=self.dtype, device=storage.device).set_(
            storage, self.offset, self.size, self.stride
        )


@dataclass(frozen=True)
class _Entry:
    """One operation; `made` maps the index of a result to the result's new storage."""

    operator: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    generator_states: tuple[torch.Tensor, ...]
    reads: frozenset[int]
    writes: frozenset[int]
    made: dict[int, _Place]


@dataclass(frozen=True)
class _Constant:
    """A tensor from outside that an operation read, with its version at that time."""

    tensor: torch.Tensor
    version: int


class Recording:
    """The operations of one model's construction, in order, and the storages that they make and change."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._writers: dict[int, list[int]] = {}  # indices of the entries that write a storage, by storage
        self._constants: dict[int, _Constant] = {}
        self._known: dict[int, StorageWeakRef] = {}  # weak references reserve addresses, so that ids stay unique
        # storage without memory -> the device that it would have without delayed initialisation
        self._delayed: dict[int, torch.device] = {}
        self._stands_for: dict[int, int] = {}  # storage of a delayed parameter -> original storage
        self._meta_of: dict[int, torch.UntypedStorage] = {}
        self.is_quiet = False  # True while internal operations run

    def knows(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor has no memory and this recording can replay it.

        Args:
            tensor: of any shape, on any device.
        """
        # `tensor.device` is no test: during a recording, a delayed tensor reports the device that it would have without
        # delayed initialisation.
        return is_plain(tensor) and tensor.untyped_storage().device.type == "meta" and self.delays(tensor)

    def device(self, tensor: torch.Tensor) -> torch.device:
        """Return the device that a delayed tensor would have without delayed initialisation.

        Args:
            tensor: of any shape; `delays` is true of it.
        """
        return self._delayed[self._id(tensor)]

    def delays(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor has no values yet, so that operations on it can only be recorded.

        Args:
            tensor: of any shape; views of a delayed tensor are delayed too.
        """
        return self._id(tensor) in self._delayed

    def delay(self, tensor: torch.Tensor) -> torch.Tensor:
        """Delay a tensor from now on; return its stand-in, or the tensor itself if this recording did not make it.

        Args:
            tensor: of any shape; the stand-in has the same shape, on the meta device.
        """
        with self.quietly():
            return self._delay(tensor)

    def _delay(self, tensor: torch.Tensor) -> torch.Tensor:
        if not is_plain(tensor) or self.knows(tensor):
            return tensor
        storage = self._id(tensor)
        if storage not in self._writers or storage in self._constants:
            return tensor
        if storage not in self._meta_of:
            meta = torch.UntypedStorage(tensor.untyped_storage().nbytes(), device="meta")  # only its address is used
            self._meta_of[storage] = meta
            self._known[meta._cdata] = StorageWeakRef(meta)
            self._stands_for[meta._cdata] = storage
            self._delayed[storage] = tensor.device
        return self._place(tensor).in_storage(self._meta_of[storage])

    def replay(self, tensor: torch.Tensor) -> torch.Tensor:
        """Compute only a delayed tensor and its dependencies; another call computes it again.

        Args:
            tensor: of any shape; the result has the same shape, on the device that the tensor would have without
                delayed initialisation.

        Raises: DelayedInitializationError if a tensor from outside has changed since it was read.
        """
        place = self._place(tensor)
        storages: dict[int, torch.UntypedStorage] = {}
        for storage, constant in self._constants.items():
            if constant.tensor._version != constant.version:
                raise DelayedInitializationError(
                    f"delayed initialisation: a tensor of shape {tuple(constant.tensor.shape)} that was read while the "
                    "model was made has been changed since, so parameters that depend on it cannot be computed. "
                    "Change a copy of it"
                )
            storages[storage] = constant.tensor.untyped_storage()
        with torch.no_grad(), self.quietly():
            for number in self._needed(place.storage):
                self._run(self._entries[number], storages)
            return place.in_storage(storages[place.storage])

    def note(
        self,
        operator: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        results: Any,
        *,
        generator_states: tuple[torch.Tensor, ...],
        home: torch.device | None = None,
    ) -> None:
        """Record an operation.

        Args:
            generator_states: the states before the operation, if it is random.
            home: the device that delayed results would have without delayed initialisation; None if results are
                computed.
        """
        recorded_args, recorded_kwargs = pytree.tree_map_only(torch.Tensor, self._place, (args, kwargs))
        reads = {place.storage for place in _places((recorded_args, recorded_kwargs))}
        writes = {self._id(tensor) for tensor in written_tensors(operator, args, kwargs)}
        made: dict[int, _Place] = {}
        for index, result in enumerate(pytree.tree_leaves(results)):
            if isinstance(result, torch.Tensor) and not self._is_known(self._id(result)):
                if home is not None:
                    self._delayed[self._id(result)] = home
                made[index] = self._place(result)
        writes |= {place.storage for place in made.values()}
        if not writes:
            return
        for storage in writes:
            self._writers.setdefault(storage, []).append(len(self._entries))
        self._entries.append(
            _Entry(
                operator, recorded_args, recorded_kwargs, generator_states, frozenset(reads), frozenset(writes), made
            )
        )

    def take_constants(self, args: Any, written: list[torch.Tensor]) -> None:
        """Keep an operation's input tensors that no recorded operation made, before the operation can change them.

        Raises: DelayedInitializationError.
        """
        changed = {self._id(tensor) for tensor in written}
        for tensor in tensors_of(args):
            storage = self._id(tensor)
            if not self._is_known(storage):
                if tensor.untyped_storage().device.type == "meta":
                    raise DelayedInitializationError(
                        f"delayed initialisation: a tensor of shape {tuple(tensor.shape)} on the meta device is read, "
                        "and nothing is known of its values. Construct the module that reads it in a "
                        "delay_param_initialization(enabled=False) block"
                    )
                self._constants[storage] = _Constant(tensor, tensor._version)
            if storage in changed and storage in self._constants:
                # A replay repeats the recorded changes, so the tensor's earlier value is kept.
                held = self._constants[storage].tensor
                if held.untyped_storage()._cdata == tensor.untyped_storage()._cdata:
                    copied = torch.empty(0, dtype=torch.uint8, device=tensor.device)
                    copied.set_(tensor.untyped_storage().clone())
                    self._constants[storage] = _Constant(copied, copied._version)

    @contextmanager
    def quietly(self) -> Iterator[bool]:
        """Switch off recording and the pretended devices of delayed tensors in this block."""
        before, self.is_quiet = self.is_quiet, True
        try:
            yield before
        finally:
            self.is_quiet = before

    def _is_known(self, storage: int) -> bool:
        return storage in self._writers or storage in self._constants or storage in self._delayed

    def _id(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        found = storage._cdata
        if found not in self._known:
            self._known[found] = StorageWeakRef(storage)
        return int(self._stands_for.get(found, found))

    def _place(self, tensor: torch.Tensor) -> _Place:
        storage = self._id(tensor)
        return _Place(
            storage,
            tuple(tensor.shape),
            tensor.stride(),
            tensor.storage_offset(),
            tensor.dtype,
            self._delayed.get(storage, tensor.device),
        )

    def _needed(self, storage: int) -> list[int]:
        """Return the indices of the entries on which a storage's values depend, in order."""
        needed: set[int] = set()
        looked_at: dict[int, int] = {}
        open_ends = [(storage, len(self._entries))]
        while open_ends:
            storage, limit = open_ends.pop()
            if looked_at.get(storage, 0) >= limit:
                continue
            looked_at[storage] = limit
            for number in self._writers.get(storage, ()):
                if number < limit and number not in needed:
                    needed.add(number)
                    open_ends += [(read, number) for read in self._entries[number].reads]
        return sorted(needed)

    def _run(self, entry: _Entry, storages: dict[int, torch.UntypedStorage]) -> None:
        for storage in entry.writes & self._constants.keys():
            if storages[storage]._cdata == self._constants[storage].tensor.untyped_storage()._cdata:
                storages[storage] = storages[storage].clone()
        args, kwargs = pytree.tree_map_only(
            _Place, lambda place: place.in_storage(storages[place.storage]), (entry.args, entry.kwargs)
        )
        with _generators_at(generators_of(args, kwargs), entry.generator_states):
            results = pytree.tree_leaves(entry.operator(*args, **kwargs))
        for index, place in entry.made.items():
            if results[index].stride() != place.stride:
                laid = torch.empty_strided(place.size, place.stride, dtype=place.dtype, device=results[index].device)
                results[index] = laid.copy_(results[index])
            storages[place.storage] = results[index].untyped_storage()


def tensors_of(values: Any) -> list[torch.Tensor]:
    """Return all tensors among arguments."""
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def written_tensors(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the arguments that an operator changes.

    Args:
        operator: a torch operator with a schema.
        args: positional arguments of its call; lists of tensors may be among them.
        kwargs: keyword arguments of its call.
    """
    found: list[torch.Tensor] = []
    for place, argument in enumerate(operator._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) and not argument.kwarg_only else kwargs.get(argument.name)
            found += tensors_of(value)
    return found


def _places(values: Any) -> list[_Place]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, _Place)]


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is dense and of torch's own classes; operations on other tensors are not recorded.

    Args:
        tensor: of any shape.
    """
    return tensor.layout is torch.strided and type(tensor) in (torch.Tensor, torch.nn.Parameter)


def generators_of(args: Any, kwargs: Any) -> list[torch.Generator]:
    """Return the generators that a random operator may draw from."""
    given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Generator)]
    if given:
        return given
    return [torch.default_generator, *(torch.cuda.default_generators if torch.cuda.is_initialized() else ())]


@contextmanager
def _generators_at(generators: list[torch.Generator], states: tuple[torch.Tensor, ...]) -> Iterator[None]:
    """Set generators to earlier states in this block, and restore their current states afterwards."""
    before = [one.get_state() for one in generators[: len(states)]]
    for generator, state in zip(generators, states, strict=False):
        generator.set_state(state)
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=False):
            generator.set_state(state)
