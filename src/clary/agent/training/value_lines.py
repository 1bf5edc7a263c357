"""Values in lines of text: the SDK's metrics files and MLflow's folder of runs. Pure.

Source: `SageMakerFileMetricsWriter` of sagemaker.experiments and smexperiments (JSON, one record in each line:
MetricName, Value, Timestamp, and IterationNumber or Step); MLflow's FileStore (`metrics/NAME`, lines `timestamp value
step`).
"""

from __future__ import annotations

import json
import math
from datetime import datetime, timezone
from typing import Any

from clary.contract.training_values import MAX_NAME_CHARACTERS, Finding

MAX_LINE_BYTES = 4096
_MS_PER_S = 1000
_MOST_MS = 4_102_444_800_000  # 2100
_MOST_SECONDS = 1e11  # a larger number counts milliseconds
_MOST_STEP = 2**63


def of_json_line(line: bytes) -> Finding | None:
    """Return the value of a record, or None if the line is malformed."""
    if len(line) > MAX_LINE_BYTES:
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    name, value = record.get("MetricName"), _number(record.get("Value"))
    at_ms = _moment_ms(record.get("Timestamp"))
    if not is_name(name) or value is None or at_ms is None:
        return None
    step = record.get("Step", record.get("IterationNumber"))
    return Finding(name=str(name), at_ms=at_ms, step=_step(step), value=value if math.isfinite(value) else None)


def of_mlflow_line(line: bytes, *, name: str) -> Finding | None:
    """Return the value of a line of MLflow, or None if the line is malformed."""
    parts = line[:MAX_LINE_BYTES].split()
    if not 2 <= len(parts) <= 3 or not is_name(name):
        return None
    at_ms, value = _number(parts[0]), _number(parts[1])
    if at_ms is None or not 0 <= at_ms < _MOST_MS or value is None:
        return None
    step = _number(parts[2]) if len(parts) == 3 else None
    return Finding(name=name, at_ms=int(at_ms), step=_step(step), value=value if math.isfinite(value) else None)


def is_name(name: Any) -> bool:
    """Whether a metric may have this name."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARACTERS or "\0" in name:
        return False
    return name.isascii() or not any(0xD800 <= ord(character) <= 0xDFFF for character in name)


def _number(text: Any) -> float | None:
    if isinstance(text, bool) or not isinstance(text, int | float | str | bytes):
        return None
    try:
        return float(text)
    except (ValueError, OverflowError):
        return None


def _step(step: Any) -> int | None:
    if isinstance(step, bool) or not isinstance(step, int | float):
        return None
    return int(step) if -_MOST_STEP < step < _MOST_STEP else None  # false for NaN, too


def _moment_ms(moment: Any) -> int | None:
    """Return seconds or milliseconds since 1970, or an ISO time, as milliseconds."""
    if isinstance(moment, str):
        try:
            read = datetime.fromisoformat(moment)
        except ValueError:
            return None
        moment = (read if read.tzinfo else read.replace(tzinfo=timezone.utc)).timestamp()
    number = _number(moment)
    if number is None or not math.isfinite(number):
        return None
    at_ms = number if number > _MOST_SECONDS else number * _MS_PER_S
    return int(at_ms) if 0 <= at_ms < _MOST_MS else None
