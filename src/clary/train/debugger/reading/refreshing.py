"""Context managers that stop or resume trials' scans for new files. The names are smdebug's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from clary.train.debugger.reading.trial import Trial


@contextlib.contextmanager
def no_refresh(trials: Trial | list[Trial]) -> Iterator[Trial | list[Trial]]:
    """Stop the scans of trials for new files within a block."""
    with _refreshing(trials, False):
        yield trials


@contextlib.contextmanager
def refresh(trials: Trial | list[Trial]) -> Iterator[Trial | list[Trial]]:
    """Resume the scans of trials for new files, in a block inside `no_refresh`."""
    with _refreshing(trials, True):
        yield trials


@contextlib.contextmanager
def _refreshing(trials: Trial | list[Trial], wanted: bool) -> Iterator[None]:
    several = trials if isinstance(trials, list) else [trials]
    before = [trial.dynamic_refresh for trial in several]
    for trial in several:
        trial.dynamic_refresh = wanted
    try:
        yield
    finally:
        for trial, was in zip(several, before, strict=True):
            trial.dynamic_refresh = was
