"""The number of values and of metrics that a job's program may add. Kept in memory: a new service begins anew.

Where: `Store.allowance`. PutMetricData and BatchPutMetrics ask it before they store values. A program that sends values
at the pace of its training never meets the limits; they bound how fast a hostile one can fill the database.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from clary.base.token_bucket import TokenBucket
from clary.control.jobs.training_job import FinalMetric, TrainingJob
from clary.control.store.errors import MetricsFull

BURST_VALUES = 1_000_000  # values that a job may add at once
VALUES_PER_S = 10  # values per second that it may add in the long run
MAX_METRICS = 10_000  # metrics of a job, each combination of dimensions counted
MAX_JOBS = 1000  # jobs that are remembered, the last that have added values


@dataclass
class _Used:
    """The use that a job has made of its allowance."""

    values: TokenBucket
    names: set[int] = field(default_factory=set)  # hashes of names


class MetricAllowance:
    """The allowances of all jobs."""

    def __init__(self) -> None:
        # Most recently used last. Another job of the same name has another time of creation.
        self._used: OrderedDict[tuple[str, datetime], _Used] = OrderedDict()

    def take(
        self, values: Mapping[str, Sequence[FinalMetric]], jobs: Mapping[str, TrainingJob], *, now_s: float
    ) -> None:
        """Count values that jobs are about to add; of all jobs, or of no job.

        Args:
            values: job -> its values.
            jobs: job -> its record.
            now_s: monotonic time.
        Raises: MetricsFull for values that come too fast, with `is_too_fast`, or for too many metrics.
        """
        found = [(self._of(jobs[name], now_s), jobs[name], given) for name, given in values.items()]
        for used, job, given in found:
            if not used.values.has(len(given), now_s):
                raise MetricsFull(
                    f"Rate exceeded: the program of training job {job.name} may add {BURST_VALUES} values of metrics "
                    f"at once and {VALUES_PER_S} a second in the long run; send fewer, such as means",
                    is_too_fast=True,
                )
            if len(used.names | {hash(value.name) for value in given}) > MAX_METRICS:
                raise MetricsFull(
                    f"the program of training job {job.name} may add {MAX_METRICS} metrics, each combination of "
                    "dimensions counted: use fewer names and dimensions"
                )
        for used, _, given in found:
            used.values.take(len(given))
            used.names.update(hash(value.name) for value in given)

    def _of(self, job: TrainingJob, now_s: float) -> _Used:
        key = (job.name, job.created_at)
        if key not in self._used:
            full = TokenBucket(rate_per_s=VALUES_PER_S, capacity=BURST_VALUES, now_s=now_s)
            self._used[key] = _Used(full)
        self._used.move_to_end(key)
        while len(self._used) > MAX_JOBS:
            self._used.popitem(last=False)
        return self._used[key]
