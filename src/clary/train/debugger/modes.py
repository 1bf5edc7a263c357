"""The phases of training that steps are counted in."""

from __future__ import annotations

from enum import Enum


class ModeKeys(Enum):
    """A phase; the numbers are smdebug's."""

    TRAIN = 1
    EVAL = 2
    PREDICT = 3
    GLOBAL = 4  # no phase is set; in queries, steps of all phases in one count
