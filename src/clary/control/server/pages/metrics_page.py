"""`GET /metrics` for Prometheus: running and waiting jobs, retries, and the hosts' last measurements.

Where: `clary_handler` routes GET /metrics of the service's port to it. The setting `metrics_page` decides who may read
it: by default only clients with the page's own token, because programs of jobs also reach the port from this machine's
loopback (`authorization`). `docs/grafana/clary.json` is a dashboard over these names.

A training job's label is `training_job`: Prometheus uses `job` for the scraped service itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime

from clary import __version__
from clary.base.clock import Clock
from clary.control.jobs.training_job import PastAttempt, TrainingJob
from clary.control.reconcile.gateways.sample_gateway import LastValues, SampleGateway
from clary.control.reconcile.hub import JobHub
from clary.control.series.exposition import CONTENT_TYPE, COUNTER, Family, exposed_name, text_of
from clary.control.server.pages.checkpoints_page import checkpoint_facts
from clary.control.wire.messages import HttpResponse


class MetricsPage:
    """Answers scrapers.

    Args:
        hub: jobs that have not ended.
        samples: last values of hosts.
        clock: measures waiting times.
    """

    def __init__(self, hub: JobHub, samples: SampleGateway, clock: Clock) -> None:
        self._hub = hub
        self._samples = samples
        self._clock = clock

    def page(self) -> HttpResponse:
        """Return the page."""
        return HttpResponse(200, [("Content-Type", CONTENT_TYPE)], text_of(self._families()).encode())

    def _families(self) -> list[Family]:
        active, waiting = self._hub.active_jobs(), list(self._hub.waiting_jobs().values())
        last = self._samples.last_values(active)
        return [
            *_service_families(self._samples.num_rows),
            *_job_families(active, waiting, now_of=lambda job: job.now(self._clock)),
            *_restart_families([*active, *waiting]),
            *_checkpoint_families(active),
            *_series_families(last),
        ]


def _service_families(num_rows: int) -> list[Family]:
    build = Family(name="clary_build_info", help="Version of the service; always 1.")
    build.add(1, version=__version__)
    rows = Family(
        name="clary_sample_rows_total", help="Rows of samples that agents sent since the service began.", kind=COUNTER
    )
    rows.add(num_rows)
    return [build, rows]


def _job_families(
    active: Sequence[TrainingJob], waiting: Sequence[TrainingJob], *, now_of: Callable[[TrainingJob], datetime]
) -> list[Family]:
    jobs = Family(name="clary_jobs", help="Jobs that are not over, by secondary status.")
    for status, count in sorted(Counter(job.secondary_status.value for job in [*active, *waiting]).items()):
        jobs.add(count, secondary_status=status)
    queue = Family(name="clary_jobs_waiting", help="Jobs that wait for hosts.")
    queue.add(len(waiting))
    since = Family(name="clary_job_waiting_seconds", help="Since a job that waits for hosts was created.")
    for job in waiting:
        since.add(max(0.0, (now_of(job) - job.created_at).total_seconds()), training_job=job.name)
    state = Family(name="clary_job_state", help="State of a job that has hosts; always 1.")
    hosts = Family(name="clary_job_hosts", help="Hosts of a job, by phase.")
    for job in active:
        state.add(1, training_job=job.name, status=job.status.value, secondary_status=job.secondary_status.value)
        for phase, count in sorted(Counter(record.facts.phase.value for record in job.hosts.values()).items()):
            hosts.add(count, training_job=job.name, phase=phase)
    return [jobs, queue, since, state, hosts]


def _restart_families(jobs: Sequence[TrainingJob]) -> list[Family]:
    family = Family(name="clary_job_restarts_total", help="Attempts of a job that ended early, by cause.", kind=COUNTER)
    for job in jobs:
        for cause, count in sorted(Counter(_cause(attempt) for attempt in job.past_attempts).items()):
            family.add(count, training_job=job.name, cause=cause)
    return [family]


def _cause(attempt: PastAttempt) -> str:
    """Return why an attempt ended: its kind of end, such as `reclaimed`, or the fault of its failure."""
    return attempt.failure.fault if attempt.failure is not None else attempt.kind.value


def _checkpoint_families(active: Sequence[TrainingJob]) -> list[Family]:
    seconds = Family(
        name="clary_checkpoint_lag_seconds",
        help="How long the oldest change of a host's checkpoints waits to be stored.",
    )
    size = Family(name="clary_checkpoint_lag_bytes", help="Bytes of a host's checkpoints that are not stored yet.")
    for job in active:
        for host, facts in checkpoint_facts(job).items():
            seconds.add(facts["lag_s"], training_job=job.name, host=host)
            size.add(facts["dirty_bytes"], training_job=job.name, host=host)
    return [seconds, size]


def _series_families(last: Sequence[LastValues]) -> list[Family]:
    families: dict[str, Family] = {}
    for values in last:
        for series, value in values.values.items():
            name, labels = exposed_name(series)
            family = families.setdefault(name, Family(name=name, help=f"Newest value of {_described(series)}."))
            family.add(value, training_job=values.job_name, host=values.host, **labels)
    return [families[name] for name in sorted(families)]


def _described(series: str) -> str:
    scope, _, quantity = series.partition("/")
    return f"{scope.partition('-')[0]}/{quantity}" if exposed_name(series)[1].keys() != {"series"} else "a series"
