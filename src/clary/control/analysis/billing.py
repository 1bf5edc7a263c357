"""Training time and billable time of a job, as both SDKs print them, and their cost by the price file. Pure.

Where: DescribeTrainingJob (TrainingTimeInSeconds, BillableTimeInSeconds) and the ledger of `clary describe`; prices
come from `scheduling.prices`.
Source: DescribeTrainingJob in the AWS API reference; "You can calculate the savings from using managed spot training
using the formula (1 - BillableTimeInSeconds / TrainingTimeInSeconds) * 100".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from clary.contract.statuses import SecondaryStatus
from clary.control.analysis.time_parts import attempts_of_rows
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.training_job import TrainingJob

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, kw_only=True)
class JobPrice:
    """Cost of all hosts of a job together."""

    usd_per_hour: float | None  # price on demand; None if a type has no price
    spot_fraction: float  # price of spot capacity divided by the price on demand, above 0, at most 1
    source: str = ""  # source of the prices, in words
    notes: tuple[str, ...] = ()  # sentences on missing prices


@dataclass(frozen=True, kw_only=True)
class Bill:
    """Time and money of a job; times are those of one host, as in the API, and money is for all hosts."""

    training_s: int  # at least 1 once a host has begun to download
    billable_s: int
    is_spot: bool
    spot_fraction: float
    savings_percent: float
    on_demand_usd: float | None  # price of `training_s` on demand; None if a type has no price
    spot_usd: float | None  # price of `training_s` on spot capacity, also for a job that was not a spot job
    source: str
    notes: tuple[str, ...]


def bill(job: TrainingJob, price: JobPrice, *, now: datetime) -> Bill | None:
    """Return time and money up to `now`, or to the job's end; None while no host has begun to download.

    Args:
        job: job whose transitions show the training time.
        price: price of all hosts of the job.
        now: end of the counted time of a running job.
    """
    trained = training_time(job, now=now)
    if trained is None:
        return None
    is_spot = JobRequest(job.request).is_spot
    training_s = whole_seconds(trained)
    billable_s = billable_seconds(training_s, price.spot_fraction if is_spot else 1.0)
    cost = None if price.usd_per_hour is None else price.usd_per_hour * training_s / SECONDS_PER_HOUR
    return Bill(
        training_s=training_s,
        billable_s=billable_s,
        is_spot=is_spot,
        spot_fraction=price.spot_fraction,
        savings_percent=savings_percent(training_s, billable_s),
        on_demand_usd=cost,
        spot_usd=None if cost is None else cost * price.spot_fraction,
        source=price.source,
        notes=price.notes,
    )


def training_time(job: TrainingJob, *, now: datetime) -> timedelta | None:
    """Return the sum over all attempts of the time from entering Downloading to leaving Uploading, or to the end.

    Args:
        job: the record.
        now: end of the counted time of a job that has not ended.
    Returns: None while no attempt has begun to download.
    """
    stretches = list(_stretches(job, now))
    return sum((end - start for start, end in stretches), timedelta()) if stretches else None


def whole_seconds(time: timedelta) -> int:
    """Return whole seconds, at least one: the SDKs divide by this number."""
    return max(1, round(time.total_seconds()))


def billable_seconds(training_s: int, fraction: float) -> int:
    """Return the billable seconds of `training_s`, at least one, if `fraction` of its price is charged."""
    return max(1, round(training_s * fraction))


def savings_percent(training_s: int, billable_s: int) -> float:
    """Return the savings by spot capacity, in percent, unrounded, as the SDKs compute them."""
    return (1 - float(billable_s) / training_s) * 100


def _stretches(job: TrainingJob, now: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Yield the start and end of each attempt's training time."""
    last_end = job.transitions[-1].ended_at if job.is_terminal and job.transitions else None
    ends = [*(attempt.ended_at for attempt in job.past_attempts), last_end or now]
    began: dict[int, datetime] = {}
    for row, number in zip(job.transitions, attempts_of_rows(job.transitions), strict=True):
        if row.status is SecondaryStatus.DOWNLOADING:
            began.setdefault(number, row.started_at)
    for number, start in began.items():
        yield start, max(start, ends[min(number, len(ends) - 1)])
