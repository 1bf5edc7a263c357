"""Metrics of a batch of lines: new metrics, and metrics of a repeated batch that were never stored. Pure.

Where: `agent_gateway` stores lines first and their metrics after that. If a service is killed in between, the next
service finds the lines stored, but not always their metrics. It looks up each metric in the time series: a repeated
batch has the same times, values and steps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from clary.contract.agent_protocol import LogBatch
from clary.control.jobs.training_job import FinalMetric
from clary.control.reconcile.gateways.log_steps import step_of


@dataclass(frozen=True, kw_only=True)
class BatchMetrics:
    """Metrics of a batch, in the order of its lines."""

    everything: Sequence[FinalMetric]
    new: Sequence[FinalMetric]  # metrics of lines that were not stored before
    doubtful: Sequence[FinalMetric]  # metrics of lines that an earlier service has stored
    end_sequence: int  # number of the line after the batch


def metrics_of(batch: LogBatch, *, counted: int, stored_before: int) -> BatchMetrics:
    """Sort the metrics of a batch.

    Args:
        batch: lines with the numbers of the stream.
        counted: first line whose metrics this service has not stored.
        stored_before: first line that was not stored when this service began.
    """
    everything: list[FinalMetric] = []
    new: list[FinalMetric] = []
    doubtful: list[FinalMetric] = []
    end_sequence = batch.first_sequence
    for block in batch.blocks:
        end_sequence += block.num_lines
        step = step_of(block.text) if block.metrics else None  # a block with metrics is one line
        found = [FinalMetric(name=one.name, value=one.value, at=one.at, step=step) for one in block.metrics]
        everything += found
        if end_sequence > counted:
            (new if end_sequence > stored_before else doubtful).extend(found)
    return BatchMetrics(everything=everything, new=new, doubtful=doubtful, end_sequence=end_sequence)


def lacking(wanted: Iterable[FinalMetric], stored: Iterable[FinalMetric]) -> list[FinalMetric]:
    """Return the metrics that a time series lacks, each as often as it is missing.

    Args:
        wanted: metrics that should be stored.
        stored: values of the time series, at least at the times of `wanted`.
    """
    left = Counter(_identity(one) for one in stored)
    found = []
    for one in wanted:
        if left[_identity(one)] > 0:
            left[_identity(one)] -= 1
        else:
            found.append(one)
    return found


def _identity(metric: FinalMetric) -> tuple[str, datetime, float | None, int | None]:
    return metric.name, metric.at, None if math.isnan(metric.value) else metric.value, metric.step
