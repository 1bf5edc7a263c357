"""Metrics of the job from `save_scalar(..., sm_metric=True)`: a file of JSON lines, which the agent reads as it grows.

The format is that of the metrics files of sagemaker.experiments and smexperiments; smdebug uses the latter. Outside of
jobs there is no folder for such files, and nothing is written.
"""

from __future__ import annotations

import json
import logging
import os
import time

FOLDER_VARIABLE = "SAGEMAKER_METRICS_DIRECTORY"
_log = logging.getLogger("clary.debugger")


class MetricFile:
    """The metrics file of this process. A failure to write is logged once; the training goes on."""

    def __init__(self) -> None:
        self._has_failed = False

    def add(self, name: str, value: float, step: int, timestamp: float | None = None) -> None:
        """Append a value of a metric.

        Args:
            name: name of the metric.
            value: its value; NaN and infinite values are kept.
            step: number of the step.
            timestamp: time in seconds since 1970; None for now.
        """
        folder = os.environ.get(FOLDER_VARIABLE)
        if not folder or self._has_failed:
            return
        record = {
            "MetricName": name,
            "Value": value,
            "Timestamp": time.time() if timestamp is None else float(timestamp),
            "IterationNumber": step,
        }
        path = os.path.join(folder, f"debugger-{os.getpid()}.json")
        try:
            os.makedirs(folder, exist_ok=True)
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            self._has_failed = True
            _log.warning("debugger: values of sm_metric=True become no metrics of the job: %s", error)
