"""Blocks in which trials stay unchanged, or look for new files again. The names are smdebug's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from clary.train.debugger.reading.trial import Trial


@contextlib.contextmanager
def no_refresh(trials: Trial | list[Trial]) -> Iterator[Trial | list[Trial]]:
    """Keep trials unchanged while they are examined."""
    with _refreshing(trials, False):
        yield trials


@contextlib.contextmanager
def refresh(trials: Trial | list[Trial]) -> Iterator[Trial | list[Trial]]:
    """Have trials look for new files within a block that is in `no_refresh`."""
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
