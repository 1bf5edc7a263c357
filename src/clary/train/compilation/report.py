"""Log lines about models, and the folder of `debug_mode`.

A line begins with `clary:` and goes to standard error. Each rank logs why it has not compiled a model; successes are
logged once per host.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LOCAL_RANK_VARIABLES = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK")
_TOLD_BY_TORCH = ("graph_breaks", "recompiles")  # names of torch's log artifacts


class Report:
    """Logs how models are compiled and trained.

    Args:
        folder: folder of `debug_mode`; empty to write no files.
    """

    def __init__(self, folder: str = "") -> None:
        self._folder = folder
        self._is_open = False

    def say(self, line: str, *, every_rank: bool = False) -> None:
        """Write a line to the log and to the file of `debug_mode`."""
        if every_rank or _number(_LOCAL_RANK_VARIABLES) == 0:
            with contextlib.suppress(Exception):  # the program may have closed or replaced its output
                print(f"clary: {line}", file=sys.stderr, flush=True)
        self.note(line)

    def note(self, *lines: str) -> None:
        """Write lines to the file of `debug_mode`; the first failure is logged and ends the writing."""
        if not self._folder:
            return
        place = Path(self._folder) / f"rank-{_number(_RANK_VARIABLES)}.txt"
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)
        except OSError as error:
            self._folder = ""
            print(f"clary: nothing more is written for the compiler's debug mode: {error}", file=sys.stderr, flush=True)

    def open_torch_logs(self) -> None:
        """Make torch log graph breaks and recompilations to a file in `folder`, unless TORCH_LOGS is set.

        `torch._dynamo` must be imported already. A second call does nothing.
        """
        if not self._folder or self._is_open or "TORCH_LOGS" in os.environ:
            return
        self._is_open = True
        try:
            torch_logging: Any = sys.modules["torch._logging"]
            registry = torch_logging._internal.log_registry
            place = Path(self._folder) / f"rank-{_number(_RANK_VARIABLES)}.log"
            place.parent.mkdir(parents=True, exist_ok=True)
            torch_logging.set_logs(**dict.fromkeys(_TOLD_BY_TORCH, True))
            handler = logging.FileHandler(place, encoding="utf-8")
            handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
            for name in registry.get_artifact_log_qnames():
                logger = logging.getLogger(name)
                if name.rpartition("__")[2] in _TOLD_BY_TORCH:
                    logger.handlers, logger.propagate = [handler], False
        except Exception as error:  # noqa: BLE001 - boundary: parts of torch that other releases have otherwise
            self.note(f"torch's own log is not written: {error!r}")

    def breaks(self, counted: Mapping[str, int]) -> None:
        """Write the reasons of graph breaks to the file of `debug_mode`."""
        for reason, number in counted.items():
            self.note(f"graph break, {number} times:", *(f"    {line}" for line in reason.splitlines()))


def _number(variables: tuple[str, ...]) -> int:
    words = (os.environ.get(name, "") for name in variables)
    return next((int(word) for word in words if word.isdecimal()), 0)
