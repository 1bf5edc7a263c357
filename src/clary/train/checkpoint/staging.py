"""Copies of tensors that only an optimizer's step changes, made while the next forward and backward pass run.

Where: `snapshot` returns the tensors that `states.changed_by_step_alone` names, `saving` copies them on its thread
before it writes, and each optimizer's step waits for the copies before it changes a tensor.

[Note: changes before the step] A program may change weights outside an optimizer's step, for example swap averaged
weights in or clamp weights. Then the copy would mix values of two moments, so it is refused instead of written. torch
counts changes in place, but not changes through `.data`, NumPy or fused optimizers. So some elements of each tensor are
also read when the save is called, and compared with the copy. A change of a few elements that torch does not count can
pass both checks; the docs say so (docs/training-checkpoints.md).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from clary.train.checkpoint.errors import CheckpointError

BATCH_BYTES = 32 * 1024**2  # bytes copied in one call, which releases the interpreter lock
NUM_SAMPLES = 16  # elements of each tensor that are read at the save


class Staging:
    """The late copies of one save: pending, running or finished.

    Args:
        what: names the rank and the save, for errors.
        names: names of the tensors, for errors.
        sources: tensors in host memory, of any shapes; only the step of one of `optimizers` changes them.
        targets: for each source a tensor of its shape and type, in the snapshot.
        optimizers: their next step waits for the copies.
        limit_s: longest wait for the copies, in seconds.
    """

    def __init__(
        self,
        what: str,
        *,
        names: Sequence[str],
        sources: Sequence[torch.Tensor],
        targets: Sequence[torch.Tensor],
        optimizers: Sequence[Optimizer],
        limit_s: float,
    ) -> None:
        self._what, self._limit_s = what, limit_s
        self._names, self._sources, self._targets = list(names), list(sources), list(targets)
        self._versions = [source._version for source in self._sources]
        self._samples = _copied_samples(self._sources)
        self._over = threading.Event()
        self._failure: CheckpointError | None = None
        self.step_wait_s = 0.0  # seconds that optimizers' steps have waited for these copies so far
        self._hooks = [one.register_step_pre_hook(self._before_step) for one in optimizers]

    def finish(self) -> None:
        """Wait until all tensors are copied.

        Raises: CheckpointError if a tensor was changed meanwhile or could not be copied, or the limit has passed.
        """
        if not self._over.wait(self._limit_s):
            raise CheckpointError(f"{self._what}: its tensors were not copied within {self._limit_s:g} s")
        if self._failure is not None:
            raise self._failure

    def release(self) -> None:
        """Remove the optimizers' hooks; called only on the training thread, since `step` iterates over the hooks."""
        for hook in self._hooks:
            hook.remove()

    def _before_step(self, *_: Any) -> None:
        """Delay an optimizer's step until all tensors are copied; a later save or wait raises a failed copy's error."""
        if not self._over.is_set():
            began_s = time.perf_counter()
            is_over = self._over.wait(self._limit_s)
            self.step_wait_s += time.perf_counter() - began_s
            if not is_over:
                raise CheckpointError(
                    f"{self._what}: an optimizer's step waited {self._limit_s:g} s for the copy of its tensors"
                )

    def copy(self) -> None:
        """Copy all tensors, on a thread other than the training thread; `finish` raises the errors."""
        try:
            with torch.no_grad():
                for batch in _batches(self._sources):
                    torch._foreach_copy_([self._targets[at] for at in batch], [self._sources[at] for at in batch])
                    changed = [self._names[at] for at in batch if self._has_changed(at)]
                    if changed:
                        self._failure = self._changed(changed)
                        return
        except Exception as error:  # noqa: BLE001 - raised by `finish`
            self._failure = CheckpointError(f"{self._what} was not copied: {type(error).__name__}: {error}")
            self._failure.__cause__ = error
        finally:
            self._sources, self._targets, self._samples = [], [], []
            self._over.set()

    def _has_changed(self, at: int) -> bool:
        """Whether a tensor has visibly changed since the save was called."""
        if self._sources[at]._version != self._versions[at]:
            return True
        return not torch.equal(_bits(_sampled(self._targets[at])), _bits(self._samples[at]))

    def _changed(self, names: Sequence[str]) -> CheckpointError:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return CheckpointError(
            f"{self._what}: {names[0]}{more} changed between the save and the next step of an optimizer, so the copy "
            "is of no use and was not written. Save after such a change, or make the Keeper without async_staging"
        )


class LateTensors:
    """Tensors that are still to be copied, with their targets."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._sources: list[torch.Tensor] = []
        self._targets: list[torch.Tensor] = []

    def add(self, name: str, source: torch.Tensor, target: torch.Tensor) -> None:
        """Add a tensor that is copied later.

        Args:
            name: name of the tensor, for errors.
            source: of any shape.
            target: its place in the snapshot, of the same shape and type.
        """
        self._names.append(name)
        self._sources.append(source)
        self._targets.append(target)

    def start(self, what: str, *, optimizers: Sequence[Optimizer], limit_s: float) -> Staging | None:
        """Return the Staging that copies the tensors; None if there are no tensors.

        Args: as for `Staging`.
        """
        if not self._names:
            return None
        return Staging(
            what,
            names=self._names,
            sources=self._sources,
            targets=self._targets,
            optimizers=optimizers,
            limit_s=limit_s,
        )


def _batches(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """Return the indices of tensors in groups of about BATCH_BYTES."""
    batches: list[list[int]] = []
    room = 0
    for at, tensor in enumerate(tensors):
        if room <= 0:
            batches.append([])
            room = BATCH_BYTES
        batches[-1].append(at)
        room -= tensor.nbytes
    return batches


def _sampled(tensor: torch.Tensor) -> torch.Tensor:
    """Return [up to NUM_SAMPLES] elements of a tensor of any shape, evenly spread."""
    tensor = tensor.detach()
    stride = -(-tensor.numel() // NUM_SAMPLES) or 1
    if tensor.is_contiguous():
        return tensor.as_strided((-(-tensor.numel() // stride),), (stride,))
    return tensor[torch.unravel_index(torch.arange(0, tensor.numel(), stride), tensor.shape)]


def _copied_samples(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return a copy of each tensor's samples, [up to NUM_SAMPLES], made by one operation per type."""
    views = [_sampled(tensor) for tensor in tensors]
    # torch.cat does not support every one-byte type.
    views = [view.view(torch.uint8) if view.dtype.itemsize == 1 else view for view in views]
    copied: dict[int, torch.Tensor] = {}
    for dtype in {view.dtype for view in views}:
        places = [at for at, view in enumerate(views) if view.dtype == dtype]
        together = torch.cat([views[at] for at in places])
        copied.update(zip(places, together.split([views[at].numel() for at in places]), strict=True))
    return [copied[at] for at in range(len(views))]


def _bits(elements: torch.Tensor) -> torch.Tensor:
    """Return the bytes of [n] elements; bytes of NaN compare equal."""
    return elements.contiguous().view(torch.uint8)
