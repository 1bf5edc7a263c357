"""Names of public buckets of AWS that the service reads on behalf of its clients. Pure.

Where: `settings` validates the patterns of `public_buckets`; `objects.public` and `reconcile.planning` compare the
buckets of requests with them. A name that no pattern matches is never told to AWS.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

# Public data of SageMaker's documentation, of its examples, and of its tutorials by region.
SAMPLE_BUCKETS = ("sagemaker-sample-files", "sagemaker-example-files-prod-{region}", "sagemaker-sample-data-{region}")
AWS_URL = "https://s3.amazonaws.com"
MIN_LITERAL = 6  # characters before the first `*`: a shorter pattern would match names of the owner's own buckets

_REGION = "{region}"
_REGIONS = r"[a-z]{2}(?:-[a-z]{3,12}){1,3}-[0-9]{1,2}"
_PATTERN = re.compile(r"[a-z0-9](?:[a-z0-9*-]|\{region\}){2,62}")


def check_pattern(text: str) -> str:
    """Return a pattern of names, in which `*` stands for any characters, and `{region}` for a name of a region of AWS.

    Raises: ValueError naming the problem.
    """
    if not _PATTERN.fullmatch(text):
        raise ValueError(f"expected a bucket's name without dots, such as my-open-data or open-data-*, got {text!r}")
    begin, star, _ = text.replace(_REGION, "").partition("*")
    if star and len(begin) < MIN_LITERAL:
        raise ValueError(
            f"{text!r} would match buckets that are not public: write at least {MIN_LITERAL} characters before `*`"
        )
    return text


def is_public_name(bucket: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern matches a bucket's name."""
    return "." not in bucket and any(_expression(pattern).fullmatch(bucket) for pattern in patterns)


@functools.cache
def _expression(pattern: str) -> re.Pattern[str]:
    parts = [".*".join(map(re.escape, part.split("*"))) for part in pattern.split(_REGION)]
    return re.compile(_REGIONS.join(parts))
