"""Names of jobs and log streams: the stem of a kind, the name of the next job, the host of a stream. Pure.

Where: estimates of the queue group jobs by the kind of their name; `clary rerun` names a new job after an old one.
"""

from __future__ import annotations

import re
from datetime import datetime

MAX_NAME = 63  # CreateTrainingJob, TrainingJobName
# `train-2026-01-31-12-00-00-123`, `sweep-017-9f3ab2c1`, `run_12`
_LAST_WORD = re.compile(r"[-_.]?([0-9a-f]{6,}|[0-9]+)$")  # one word at a time: a repeated group would backtrack
_TIME = re.compile(r"-[0-9]{4}(?:-[0-9]{2}){5}-[0-9]{3}$")  # as SDKs and `next_name` add it
_WORD = re.compile(r"(?<![^-_.])(?:[0-9a-f]{6,}|[0-9]+)(?![^-_.])")


def stem(name: str) -> str:
    """Return a name without the times, numbers and hashes at its end, or unchanged if nothing else is left."""
    left = name
    while (last := _LAST_WORD.search(left)) and any(letter.isdigit() for letter in last[1]):
        left = left[: last.start()]
    return left or name


def kind_of_name(name: str) -> str:
    """Return the stem with `#` for each number and hash that is a word of its own: `search-#-lr` of a sweep."""
    return _WORD.sub(lambda word: "#" if any(letter.isdigit() for letter in word[0]) else word[0], stem(name))


def host_of_stream(stream: str) -> str:
    """Return `algo-1` of `job/algo-1-1767225600`."""
    return stream.partition("/")[2].rpartition("-")[0]


def next_name(name: str, now: datetime) -> str:
    """Return a new name as SDKs make it: `name` without its time, and the present time with milliseconds."""
    ending = f"-{now:%Y-%m-%d-%H-%M-%S}-{now.microsecond // 1000:03}"
    return _TIME.sub("", name)[: MAX_NAME - len(ending)].rstrip("-") + ending
