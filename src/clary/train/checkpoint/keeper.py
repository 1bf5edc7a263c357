"""Saves and restores a program's state: the interface for training scripts.

Where: docs/training-checkpoints.md. Every rank of the default process group makes a Keeper and makes the same calls in
the same order; without a process group, a single process does.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from clary.train.checkpoint.errors import CheckpointError
from clary.train.checkpoint.folders import complete, save_name
from clary.train.checkpoint.joining import Company, join
from clary.train.checkpoint.peers import PeerMemory
from clary.train.checkpoint.plans import Plan, agree_on_plan, signature
from clary.train.checkpoint.restoring import restore
from clary.train.checkpoint.saving import Background, Writing, start_writing
from clary.train.checkpoint.snapshot import Snapshot
from clary.train.checkpoint.staging import LateTensors, Staging
from clary.train.checkpoint.states import changed_by_step_alone, check_names, flatten, optimizers
from clary.train.checkpoint.stop_notice import is_stop_ordered

if TYPE_CHECKING:
    from typing_extensions import Self  # part of typing since Python 3.11

_log = logging.getLogger(__name__)
_SAME_PLAN, _NEW_PLAN, _FAILED = 0, 1, 2  # a rank's kind of save; the highest kind of all ranks applies
_NEVER = 1 << 62  # larger than every step


class Keeper:
    """Keeps checkpoints of a state in a folder. Hosts may share a folder, or have a folder each.

    Args:
        folder: created if missing. In a job, the folder of the CheckpointConfig, which outlives hosts.
        keep: number of steps that stay, at least 1; older steps are removed once a newer step is whole.
        peers: whether a rank of another host holds a second copy of each rank's last part in memory.
        limit_s: longest wait for a disk or another rank, in seconds.
        async_staging: copy large parameters and optimizers' tensors in host memory after `save` has returned, during
            the next forward and backward pass. The next `optimizer.step()` waits for the end of the copy. The program
            promises that only steps of optimizers in the state change these tensors.

    Raises: ValueError for invalid arguments; CheckpointError on all ranks if one rank cannot use its folder.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int = 2,
        peers: bool = False,
        limit_s: float = 1800.0,
        async_staging: bool = False,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}; expected 1 or more steps to keep")
        if limit_s <= 0:
            raise ValueError(f"limit_s is {limit_s}; expected seconds, more than 0")
        if peers and async_staging:
            raise ValueError(
                "peers and async_staging are both set: copies in peers' memory need the tensors copied "
                "before `save` returns"
            )
        self.folder = Path(folder).absolute()
        self._keep, self._wants_peers, self._limit_s = keep, peers, limit_s
        self._has_async_staging = async_staging
        self._snapshot, self._memory = Snapshot(), PeerMemory()
        self._staging: Staging | None = None  # late copies of the last save
        self._background: Background | None = None  # the last save, until it was waited for
        self._tidying: Background | None = None  # a save that was waited for, but may still be removing older steps
        self._is_open = True
        self._plan: Plan | None = None
        self._last_order = 0  # order number of the last save
        self._company: Company = self._join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Copy a state into host memory and return; the copy is written while training continues.

        With `async_staging`, large parameters and optimizers' tensors in host memory are also copied while training
        continues. The first save allocates memory. A save waits until the previous save is written. Of models and
        optimizers, each rank saves its own shards; of every other value, only the lowest rank's is saved.

        Args:
            step: 0 or more, the same on all ranks; an existing step of this number is replaced.
            state: by name, models, optimizers, objects with `state_dict` and `load_state_dict`, tensors, and values
                that can be pickled.

        State after failure: earlier steps are unchanged; the program may call `save` again.
        Raises: CheckpointError on all ranks if one rank could not write the previous step, or cannot save this one; a
            rank with wrong arguments raises ValueError or TypeError instead.
        """
        self._check_open()
        failure = self._finish()
        flat: dict[str, Any] = {}
        kind = _FAILED
        with torch.no_grad(), self._naming(f"step {step} to"):
            try:
                if not isinstance(step, int) or step < 0:
                    raise ValueError(f"step is {step!r}; expected a whole number, 0 or more")
                check_names(state)
                flat = flatten(state)
                is_same = self._plan is not None and self._plan.signature == signature(flat)
                kind = _FAILED if failure else _SAME_PLAN if is_same else _NEW_PLAN
            except (ValueError, TypeError, RuntimeError) as error:
                failure = failure or error
            if self._agree(step, kind, failure) == _NEW_PLAN:
                self._plan = agree_on_plan(self._company.calls, flat)
            assert self._plan is not None
            self._take(self._plan, flat, state, step)
        writing = Writing(
            ranks=self._company.writers,
            root=self.folder,
            places=self._company.places,
            snapshot=self._snapshot,
            keep=self._keep,
            staging=self._staging,
        )
        copiers = self._company.copiers
        copies = (self._memory, copiers, self._company.partners) if copiers is not None else None
        self._background = start_writing(writing, copies=copies, told=self._note_copies, previous=self._tidying)

    def restore(self, state: MutableMapping[str, Any]) -> int | None:
        """Fill a state with the newest step of which the hosts together have all parts; the number of ranks may differ.

        With `peers`, parts in the memory of ranks count like parts on disks. Tensors are filled in place. A dict gets
        the saved content, whatever it contains; other values are replaced in `state`.

        Returns: the step; None without a whole step, and then the state is unchanged.
        State after failure: the state may be partly filled.
        Raises: CheckpointError on all ranks if one rank could not read, the checkpoint does not fit the state, or the
            last save failed.
        """
        self._check_open()
        self.wait()
        self._settle()
        calls, places = self._company.calls, self._company.places
        memories = [self._snapshot, *self._memory.memories()] if self._wants_peers else []
        with self._naming("restoring from"):
            found = restore(calls, state, root=self.folder, places=places, memories=memories)
            if found is None:
                return None
            index, folder = found

            def show() -> None:
                if folder is not None and places[calls.rank].leader == calls.rank:
                    complete(self.folder, folder, index=index, saved_at=time.time())

            calls.together(f"making step {index.step} visible in {self.folder}", show)
            return index.step

    def should_stop(self) -> bool:
        """Whether a stop of the job has been ordered on any host. Every rank calls it at the same point of its loop.

        The ranks exchange one small message and get the same answer, so that all save the same step and end. The
        program needs a handler for SIGTERM, which follows the notice; otherwise it ends before it can call this.
        """
        self._check_open()
        with self._naming("asking for a stop, beside"):
            return bool(self._company.calls.highest(int(is_stop_ordered(os.environ)))[0])

    @property
    def step_wait_s(self) -> float:
        """Seconds that optimizers' steps have waited so far for the copy of the last save (`async_staging`)."""
        return 0.0 if self._staging is None else self._staging.step_wait_s

    def wait(self) -> None:
        """Wait until the last save is on the disks of all hosts.

        Raises: CheckpointError if the save failed or timed out; it names rank, step and path.
        """
        failure = self._finish()
        if failure is not None:
            raise failure

    def rejoin(self) -> None:
        """Continue after the default process group was made anew, with new ranks in the places of lost ranks.

        Surviving ranks keep the copies in their memory; new ranks make a Keeper at the same moment.
        """
        self._check_open()
        failure = self._finish()
        if failure is not None:
            _log.warning("the last save of the group before was not written: %s", failure)
        self._settle()
        self._company = self._join()

    def close(self) -> None:
        """Wait as `wait` does, then release memory and groups. A second call does nothing.

        Raises: the error of a failed save that was not raised yet.
        """
        if not self._is_open:
            return
        failure = self._finish()
        self._settle()
        self._is_open = False
        self._company.leave()
        self._memory.release()
        self._snapshot, self._plan, self._staging = Snapshot(), None, None
        if failure is not None:
            raise failure

    def _join(self) -> Company:
        self._plan = None
        self._copies_trouble: str | None = None
        company = join(self.folder, wants_peers=self._wants_peers, limit_s=self._limit_s, last_order=self._last_order)
        self._last_order = company.last_order
        return company

    def _agree(self, step: int, kind: int, failure: BaseException | None) -> int:
        """Agree with all ranks on the kind of this save and return it, or raise on all of them."""
        calls = self._company.calls
        highest, last, first, broken = self._highest(
            failure,
            kind,
            -1 if kind == _FAILED else step,
            -_NEVER if kind == _FAILED else -step,
            int(self._copies_trouble is not None),
        )
        if broken and self._company.copiers is not None:
            words = self._copies_trouble or "another rank could not exchange its own, and says why"
            _log.warning("%s: no more copies in peers' memory: %s", self.folder, words)
            self._company.copiers = None
        if highest == _FAILED:
            raise failure or self._others_failed(step)
        if last != -first:
            raise CheckpointError(
                f"rank {calls.rank} saves step {step} to {self.folder}, others steps {-first} to {last}: all ranks "
                "must save the same step"
            )
        return highest

    def _take(self, plan: Plan, flat: dict[str, Any], state: Mapping[str, Any], step: int) -> None:
        calls = self._company.calls
        self._last_order += 1
        save = save_name(self._company.run, self._last_order)
        trouble: Exception | None = None
        late = LateTensors()
        try:
            names = changed_by_step_alone(state, flat) if self._has_async_staging else ()
            late = self._snapshot.take(
                plan, flat, save=save, step=step, rank=calls.rank, num_parts=calls.size, late=names
            )
        except Exception as error:  # noqa: BLE001 - raised below, once the others know that there is no such save
            trouble = error
        if self._highest(trouble, int(trouble is not None))[0]:
            if trouble is None:
                raise self._others_failed(step)
            raise CheckpointError(
                f"rank {calls.rank}: step {step} to {self.folder} was not copied: {type(trouble).__name__}: {trouble}"
            ) from trouble
        what = f"rank {calls.rank}: step {step} to {self.folder}"
        self._staging = late.start(what, optimizers=optimizers(state), limit_s=self._limit_s)

    def _highest(self, failure: BaseException | None, *values: int) -> list[int]:
        """Return the maximum of each value over all ranks.

        Raises: RuntimeError if a rank is lost; this rank's own `failure` instead, if there is one.
        """
        try:
            return self._company.calls.highest(*values)
        except RuntimeError:
            if failure is not None:
                raise failure from None  # this rank's own failure came first and is more specific
            raise

    @contextlib.contextmanager
    def _naming(self, doing: str) -> Iterator[None]:
        """Turn the loss of another rank into an error that names this rank, its operation and its folder."""
        try:
            yield
        except CheckpointError:
            raise
        except RuntimeError as error:
            raise CheckpointError(
                f"rank {self._company.calls.rank}: {doing} {self.folder} came to nothing: another rank is lost or does "
                f"not answer: {error}"
            ) from error

    def _others_failed(self, step: int) -> CheckpointError:
        return CheckpointError(
            f"rank {self._company.calls.rank}: step {step} to {self.folder} was not begun: another rank could not "
            "save, and its own error says why"
        )

    def _finish(self) -> BaseException | None:
        """Wait for the pending save; return its failure, once."""
        if self._background is None:
            return None
        failure = self._background.finish(self._limit_s)
        if self._staging is not None:
            self._staging.release()
        if self._background.is_over:
            self._background, self._tidying = None, self._background
        return failure

    def _settle(self) -> None:
        """Wait until no thread of this keeper accesses the folder."""
        if self._tidying is not None:
            self._tidying.join(self._limit_s)
            self._tidying = None

    def _note_copies(self, words: str) -> None:
        self._copies_trouble = words

    def _check_open(self) -> None:
        if not self._is_open:
            raise ValueError(f"the keeper of {self.folder} is closed: make a new one")
