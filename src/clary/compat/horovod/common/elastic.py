"""Elastic training: state that is committed, restored after a failure, and equal on all ranks.

In a job, a lost host ends the attempt; the next attempt continues from the last commit (`clary.train.horovod.commits`).
If all processes are alive after a failed operation, the same processes continue from the last commit.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import pickle
from collections.abc import Callable, Sequence
from typing import Any

from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

from clary.train.horovod.commits import FILE_NAME, CommitWriter, commit_folder, read_commit
from clary.train.horovod.errors import CommitError

_LOG = logging.getLogger("horovod")
# Errors on loading a state of another framework, model or optimizer; torch raises RuntimeError for different sizes.
_OF_ANOTHER_PROGRAM = (pickle.PickleError, KeyError, ValueError, TypeError, AttributeError, RuntimeError, ImportError)


class State:
    """State of a training loop.

    Args:
        bcast_object: callback that sends the object of rank 0 to all ranks.
        get_rank: callback that returns this process's rank.
    """

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._reset_callbacks: list[Callable[[], None]] = []
        self._writer: CommitWriter | None = None

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Register functions to be called after the ranks have formed a new group."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Adapt to the new ranks, and call the registered functions."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: Any) -> None:
        """Do nothing: hosts of an attempt stay the same; a new attempt has new processes."""

    def commit(self) -> None:
        """Save the state in memory; on rank 0 of a job with checkpoints, also begin to write it to their folder."""
        self.save()
        self.check_host_updates()
        folder = commit_folder(os.environ)
        if folder is not None and self._rank() == 0:
            if self._writer is None:
                self._writer = CommitWriter(folder)
                atexit.register(self._writer.close)
            self._writer.write(self.packer())

    def check_host_updates(self) -> None:
        """Do nothing: hosts of an attempt stay the same."""

    def packer(self) -> Callable[[], bytes]:
        """Return a function that returns the saved state as bytes.

        Later changes by the program are not in these bytes.
        Raises: NotImplementedError unless overridden.
        """
        raise NotImplementedError

    def unpack(self, content: bytes) -> None:
        """Load a state that `packer` wrote, as if `save` had been called in this process.

        Raises: NotImplementedError unless overridden.
        """
        raise NotImplementedError

    def resume(self) -> bool:
        """Load the last commit of an earlier attempt, or of an earlier job in the folder; return whether there was one.

        Rank 0 loads it. The commit stays when training ends, since the attempt may still fail afterwards.

        Raises: CommitError naming the file if it is not a commit, or a commit of another program.
        """
        folder = commit_folder(os.environ)
        content = read_commit(folder) if folder is not None and self._rank() == 0 else None
        if folder is None or content is None:
            return False
        try:
            self.unpack(content)
            self.restore()
        except _OF_ANOTHER_PROGRAM as error:
            raise CommitError(
                f"{os.path.join(folder, FILE_NAME)} is a commit of another program: {type(error).__name__}: {error}. "
                "Give each program a folder of checkpoints of its own (checkpoint_s3_uri), or remove the file to begin "
                "anew"
            ) from error
        _LOG.warning(
            "training continues from the commit in %s. An earlier attempt or an earlier job wrote it; give the job "
            "another checkpoint_s3_uri or remove the file to begin anew",
            os.path.join(folder, FILE_NAME),
        )
        return True

    def save(self) -> None:
        """Keep a copy of the state in memory. Raises: NotImplementedError unless overridden."""
        raise NotImplementedError

    def restore(self) -> None:
        """Restore the state from the copy. Raises: NotImplementedError unless overridden."""
        raise NotImplementedError

    def sync(self) -> None:
        """Send the state of rank 0 to all ranks. Raises: NotImplementedError unless overridden."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt to new ranks, before `sync`."""


class ObjectState(State):
    """State of plain objects, each an attribute.

    Args:
        bcast_object, get_rank: as for `State`.
        kwargs: names and initial values of the attributes.
    """

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        super().__init__(bcast_object=bcast_object, get_rank=get_rank)
        self._saved_state = kwargs
        self._set_attrs()

    def save(self) -> None:
        """Save the values of all attributes."""
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self) -> None:
        """Set all attributes to the saved values."""
        self._set_attrs()

    def sync(self) -> None:
        """Send the saved values of rank 0 to all ranks."""
        if self._saved_state:
            self._saved_state = self._bcast_object(self._saved_state)
            self._set_attrs()

    def packer(self) -> Callable[[], bytes]:
        """Return a function that returns the saved values as a pickle."""
        content = pickle.dumps(self._saved_state)
        return lambda: content

    def unpack(self, content: bytes) -> None:
        """Load the saved values from a pickle that this job wrote."""
        self._saved_state.update(pickle.loads(content))  # noqa: S301 - of this job's own folder

    def _set_attrs(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)


def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
    """Return `func` wrapped so that its first argument, a `State`, is equal on all ranks and restored after failures.

    Args:
        func: the training loop.
        reset: forms a new group of the ranks.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        state.resume()
        skips_sync = False
        while True:
            try:
                if not skips_sync:
                    state.sync()
                return func(state, *args, **kwargs)
            except HorovodInternalError:
                state.restore()
                skips_sync = False
            except HostsUpdatedInterrupt as interrupt:
                skips_sync = interrupt.skip_sync
            reset()
            state.on_reset()

    return wrapper
