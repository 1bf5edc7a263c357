"""The durations of completed jobs, for estimates of running and waiting jobs.

Where: it listens to the hub, the service fills it at the start from the rows of the job list (`JobCard`), and
`queue_outlook` reads it. Two jobs are alike if their names differ only in numbers and hashes (an SDK's time stamps, the
numbers of a sweep), and if they have equally many hosts of the same types.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence

from clary.contract.statuses import TrainingJobStatus
from clary.control.jobs.job_names import kind_of_name
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.training_job import TrainingJob
from clary.control.store.job_cards import MAX_CARDS, CardQuery, JobCard

MOST_KINDS = 1000  # of jobs; the kind whose last job completed longest ago is forgotten first
MOST_OF_A_KIND = 20  # newest durations that are kept
LAST_COMPLETED = CardQuery(status=TrainingJobStatus.COMPLETED, limit=MAX_CARDS)

Kind = tuple[str, int, str]


class PastDurations:
    """Remembers the newest durations of each kind of job."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Kind, deque[float]] = OrderedDict()

    def load(self, cards: Iterable[JobCard]) -> None:
        """Learn from jobs that an earlier service ran, newest first as `LAST_COMPLETED` finds them."""
        for card in reversed(list(cards)):
            if card.status == TrainingJobStatus.COMPLETED and card.duration_s is not None:
                self._learn((kind_of_name(card.name), card.num_hosts, card.instance_type), card.duration_s)

    def note(self, before: TrainingJob | None, job: TrainingJob) -> None:
        """Learn from a job that has just completed."""
        if before is None or before.is_terminal or job.status is not TrainingJobStatus.COMPLETED:
            return
        if job.training_started_at is not None and job.training_ended_at is not None:
            self._learn(_kind_of(job), (job.training_ended_at - job.training_started_at).total_seconds())

    def of(self, job: TrainingJob) -> Sequence[float]:
        """Return the seconds that jobs like this one ran, oldest first."""
        return tuple(self._kinds.get(_kind_of(job), ()))

    def _learn(self, kind: Kind, seconds: float) -> None:
        self._kinds.setdefault(kind, deque(maxlen=MOST_OF_A_KIND)).append(max(0.0, seconds))
        self._kinds.move_to_end(kind)
        while len(self._kinds) > MOST_KINDS:
            self._kinds.popitem(last=False)


def _kind_of(job: TrainingJob) -> Kind:
    groups = JobRequest(job.request).instance_groups
    types = ", ".join(dict.fromkeys(group.instance_type for group in groups if group.instance_type))
    return (kind_of_name(job.name), sum(group.instance_count for group in groups), types)
