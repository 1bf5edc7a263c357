"""Classification of S3 errors as transient or permanent, and retries of a call.

Errors are recognised by their attributes and names, since botocore may not be installed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

_NUM_TRIES = 5
_FIRST_WAIT_S = 0.2
_MOST_WAIT_S = 10.0
_ABSENT = ("404", "NoSuchKey", "NotFound")
# Transient errors with a 4xx status: a slow request, an upload that must start again.
_PASSING = frozenset({"NoSuchUpload", "RequestTimeout"})
_PASSING_STATUSES = frozenset({408, 409, 425, 429})
_CHANGED = ("412", "PreconditionFailed")
# Permanent errors of botocore.
_HOPELESS = frozenset({"NoCredentialsError", "NoRegionError", "ParamValidationError", "PartialCredentialsError"})

T = TypeVar("T")


def retry_with_jitter(
    function: Callable[[], T], num_tries: int = _NUM_TRIES, sleep: Callable[[float], None] = time.sleep
) -> T:
    """Call a function until it does not raise, with exponential backoff and jitter.

    Args:
        num_tries: largest number of calls, 1 or more.
        sleep: function that waits for a number of seconds.

    Raises: the error of the last try; a permanent error at once: a missing object or bucket, denied access, wrong
        arguments or credentials, missing boto3. ValueError for `num_tries` below 1.
    """
    for attempt in range(num_tries):
        try:
            return function()
        except Exception as error:
            if attempt == num_tries - 1 or is_hopeless(error):
                raise
            sleep(min(_FIRST_WAIT_S * 2**attempt, _MOST_WAIT_S) * random.uniform(0.5, 1))
    raise ValueError(f"num_tries is {num_tries}; expected 1 or more")


def is_absent(error: Exception) -> bool:
    """Return whether an error means that the object does not exist."""
    return _code(error) in _ABSENT


def is_changed(error: Exception) -> bool:
    """Return whether an error means that the object is no longer the requested version."""
    return _code(error) in _CHANGED


def is_hopeless(error: Exception) -> bool:
    """Return whether an error is permanent: S3 refuses the request, or the request cannot be sent."""
    if isinstance(error, ImportError | TypeError | ValueError) or type(error).__name__ in _HOPELESS:
        return True
    if not _code(error) or _code(error) in _PASSING:
        return False
    status = int(_response(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return is_absent(error) or (400 <= status < 500 and status not in _PASSING_STATUSES)


def _response(error: Exception) -> dict[str, Any]:
    response = getattr(error, "response", None)
    return response if isinstance(response, dict) else {}


def _code(error: Exception) -> str:
    """Return the S3 code of an error, or an empty string for other errors."""
    return str(_response(error).get("Error", {}).get("Code", ""))
