"""Checks of the histograms and images that agents send, before they are stored. Pure.

Where: `training_gateway` converts findings to rows with it. The checks matter because an agent's token may be stolen,
and users see the pictures in their browsers.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from datetime import datetime
from typing import Any

from clary.base.errors import WireError
from clary.contract.picture_files import picture_facts
from clary.contract.training_values import MAX_BUCKETS, Finding, FindingKind
from clary.control.store.training_pictures import Picture

_ROW_NUMBERS = 3  # left, right, count


def picture_of(finding: Finding, at: datetime) -> Picture:
    """Return the picture of a finding; the bytes of an image are omitted unless it may be shown.

    Raises: WireError 400 for a picture that no agent sends.
    """
    is_image = finding.kind is FindingKind.IMAGE
    data = _image(finding) if is_image else _buckets(finding)
    return Picture(
        kind=finding.kind.value,
        tag=finding.name,
        at=at,
        step=finding.step,
        file=finding.file,
        offset=finding.offset,
        size_bytes=max(0, finding.size_bytes) if is_image else 0,
        data=data,
    )


def _image(finding: Finding) -> bytes | None:
    if not finding.data:
        return None
    try:
        data = base64.b64decode(finding.data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise WireError("ValidationException", f"the picture of {finding.name!r} is no base64: {error}") from error
    return None if picture_facts(data) is None else data


def _buckets(finding: Finding) -> bytes:
    try:
        rows = json.loads(finding.data or "[]", parse_int=float)
    except (ValueError, RecursionError) as error:
        raise WireError("ValidationException", f"the histogram of {finding.name!r} is not JSON: {error}") from error
    if not isinstance(rows, list) or len(rows) > MAX_BUCKETS or not all(_is_bucket(row) for row in rows):
        expected = f"expected at most {MAX_BUCKETS} of [left, right, count]"
        raise WireError("ValidationException", f"the histogram of {finding.name!r} has no buckets: {expected}")
    return json.dumps(rows).encode()


def _is_bucket(row: Any) -> bool:
    if not isinstance(row, list) or len(row) != _ROW_NUMBERS:
        return False
    if not all(isinstance(number, float) and math.isfinite(number) for number in row):
        return False
    return bool(row[0] <= row[1] and row[2] >= 0)
