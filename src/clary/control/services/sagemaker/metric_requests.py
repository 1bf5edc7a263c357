"""Checks of CreateTrainingJob's metric patterns: a pattern that does not compile is refused when the job is created."""

from __future__ import annotations

import asyncio
import re
import time
import warnings

from clary.base.errors import WireError
from clary.control.jobs.job_request import JobRequest
from clary.control.wire.patterns import can_run_away, has_groups

# Each character set such as `(?i)[\0-\uffff]` takes milliseconds to compile, and a request may contain thousands.
COMPILING_LIMIT_S = 0.5


async def check_metrics(request: JobRequest) -> tuple[str, ...]:
    """Return warnings about patterns that capture no value or may take very long on some lines.

    Patterns are never matched here: agents match them in a separate process, with a time limit. All patterns are
    parsed, which finds nearly all errors; patterns are compiled until `COMPILING_LIMIT_S` have passed.

    Raises: WireError(ValidationException) for the first pattern that does not compile, with the position of the error.
    """
    if not request.has_own_metrics:
        return ()
    return await asyncio.to_thread(_check, request)


def _check(request: JobRequest) -> tuple[str, ...]:
    found = []
    until_s = time.monotonic() + COMPILING_LIMIT_S
    for definition in request.metric_definitions:
        try:
            has_value, is_slow = _looks(definition.regex, compiles=time.monotonic() < until_s)
        except (re.error, OverflowError, RecursionError) as error:
            raise WireError(
                "ValidationException",
                f"Regex of metric definition {definition.name!r} does not compile: {error}; got {definition.regex!r}.",
            ) from error
        if not has_value:
            found.append(
                f"metric {definition.name}: its Regex {definition.regex!r} has no group in parentheses, so that it "
                "captures no value and the metric stays empty"
            )
        if is_slow:
            found.append(
                f"metric {definition.name}: its Regex repeats what repeats and can take very long on some lines; it is "
                "given up for the job once it takes 1 s on one"
            )
    return tuple(found)


def _looks(regex: str, *, compiles: bool) -> tuple[bool, bool]:
    """Return whether a pattern has a group, and whether it may take very long; raises as `re.compile` does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's warnings about character sets do not matter here
        found = has_groups(regex, 0), can_run_away(regex, 0)
        if compiles:
            re.compile(regex)
        return found
