"""The group of this process: all ranks of the job, formed once.

Where: `smdistributed.dataparallel.tensorflow` calls `init`; all exchanges use `lists`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

from clary.train._native.errors import CollectiveError
from clary.train.collective.adapters import numpy as arrays
from clary.train.collective.adapters.tensorflow.lists import Lists

_LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SMDATAPARALLEL_LOCAL_RANK")
_LOCAL_SIZE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")


class Process:
    """Membership of this process in a group; `smdistributed.dataparallel.tensorflow` has one.

    Args:
        name: name of the library as users know it, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._lists: Lists | None = None

    def init(self, environ: Mapping[str, str] = os.environ) -> None:
        """Form the group of all ranks; every rank calls it once.

        Raises:
            CollectiveError: `init` was called before, and `shutdown` has not been called since.
            ValueError: this process was not started as a rank, or a variable is invalid.
            BootstrapError: the group could not be formed; the text names the missing ranks.
        """
        with self._lock:
            if self._lists is not None:
                raise CollectiveError(
                    f"{self._name}.init() was called again: it is already initialized; call it once", retryable=False
                )
            self._lists = Lists(arrays.init(environ, group_name="tensorflow"))

    @property
    def is_initialized(self) -> bool:
        """Whether `init` was called and `shutdown` has not been called since."""
        return self._lists is not None

    @property
    def world(self) -> arrays.World:
        """The group; raises the same errors as `lists`."""
        return self.lists.world

    @property
    def lists(self) -> Lists:
        """Exchanges over the group.

        Raises: CollectiveError before `init` and after `shutdown`.
        """
        if self._lists is None:
            raise CollectiveError(
                f"{self._name} is not initialized: call {self._name}.init() before anything else", retryable=False
            )
        return self._lists

    def local_rank(self, environ: Mapping[str, str] = os.environ) -> int:
        """Return this process's rank on its host.

        Raises: CollectiveError before `init`; ValueError if the launcher has not set it for a group of several ranks.
        """
        return self._count(environ, _LOCAL_RANK)

    def local_size(self, environ: Mapping[str, str] = os.environ) -> int:
        """Return the number of ranks on this host.

        Raises: CollectiveError before `init`; ValueError if the launcher has not set it for a group of several ranks.
        """
        return self._count(environ, _LOCAL_SIZE)

    def shutdown(self) -> None:
        """Leave the group. A second call does nothing."""
        with self._lock:
            lists, self._lists = self._lists, None
        if lists is not None:
            lists.world.close()

    def _count(self, environ: Mapping[str, str], names: tuple[str, ...]) -> int:
        size = self.world.size
        for name in names:
            text = environ.get(name, "").strip()
            if text.isascii() and text.isdigit():
                return int(text)
        if size == 1:
            return 0 if names is _LOCAL_RANK else 1
        raise ValueError(
            f"none of {', '.join(names)} is set to a number: start this program with a launcher that sets one of them"
        )
