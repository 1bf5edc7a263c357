"""Numbers and pictures that a program writes into files about its own training, and its progress.

Where: `POST /clary/v1/agents/{job}/{attempt}/{host}/training` carries a TrainingBatch; the answer is a TrainingReceipt.
Findings are numbered from 0 over the life of one host in one attempt, so that no finding is stored twice. A program may
also report its progress itself to STATUS_PATH (`control.server.agent_routes`).
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from clary.base.string_enum import StrEnum

MAX_FINDINGS = 2_000  # of a batch
MAX_NAME_CHARACTERS = 255  # of a metric or a tag, as MetricDefinition.Name
MAX_DATA_CHARACTERS = 700_000  # of all findings of a batch together; half a megabyte in base64
MAX_BUCKETS = 64  # buckets of a stored histogram; neighbours are joined above this number
MAX_HISTOGRAM_TAGS = 2_000  # of a job
MAX_IMAGE_TAGS = 200
STATUS_TOKEN_FILE = (".clary", "status-token")  # below a host's /opt/ml
STATUS_PATH = "/clary/v1/status/{job}/{attempt}/{host}"  # below the service's URL, as programs see it


class FindingKind(StrEnum):
    """Kind of a finding."""

    SCALAR = "scalar"  # a metric's value
    HISTOGRAM = "histogram"  # data: JSON of [[left, right, count], ...], from left to right
    IMAGE = "image"  # data: the file in base64; empty for an image that is not kept (`contract.picture_files`)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One value, with its step and its time.

    Attributes:
        kind: kind of the finding.
        name: name of the metric, or tag.
        at_ms: milliseconds since 1970, as the program wrote them.
        step: step of the training; None if the program gave no step.
        value: value of a scalar; None if it is not a finite number.
        data: data of a histogram or an image.
        file: path of the file with the finding, below the host's `/opt/ml`.
        offset: offset of the record in the file, in bytes.
        size_bytes: size of an image as the program wrote it.
    """

    kind: FindingKind = FindingKind.SCALAR
    name: str
    at_ms: int
    step: int | None = None
    value: float | None = None
    data: str = ""
    file: str = ""
    offset: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class TrainingProgress:
    """Progress of a program.

    Attributes:
        done: finished part of `total`, in `unit`. Both refer to the whole training if its length is known.
        total: None if unknown.
        unit: steps, epochs or percent.
        source: kubeflow, trainer_state or log.
        at_ms: milliseconds since 1970.
        eta_s: seconds until the end; None until a rate is known.
        epoch: number of the current epoch, from 1; None if unknown.
        max_epoch: number of epochs in all.
        step_in_epoch: number of finished steps of the current epoch.
        steps_per_epoch: number of steps of an epoch.
    """

    done: float
    total: float | None = None
    unit: str = "steps"
    source: str = "log"
    at_ms: int = 0
    eta_s: float | None = None
    epoch: int | None = None
    max_epoch: int | None = None
    step_in_epoch: int | None = None
    steps_per_epoch: int | None = None

    @property
    def percent(self) -> float | None:
        """Share that is done, from 0 to 100; None if the total is unknown."""
        return None if not self.total else max(0.0, min(100.0, 100.0 * self.done / self.total))


@dataclass(frozen=True, kw_only=True)
class TrainingBatch:
    """Findings of one host in the order in which they were found."""

    first: int  # number of the first finding
    findings: tuple[Finding, ...] = ()
    progress: TrainingProgress | None = None  # None without new progress
    num_dropped: int = 0  # number of findings dropped over the host's life


@dataclass(frozen=True, kw_only=True)
class TrainingReceipt:
    """Acknowledgement of the findings that the service has stored."""

    next: int  # findings with lower numbers are stored, or permanently refused


def status_token(agent_token: str, *, job: str, attempt: int, host: str) -> str:
    """Return the token of STATUS_PATH for a host's program; the agents' token cannot be derived from it.

    Args:
        agent_token: agents' token of the attempt; the key of the HMAC.
        job: name of the job.
        attempt: number of the attempt.
        host: name of the host.
    """
    text = f"training status:{job}:{attempt}:{host}"
    return hmac.new(agent_token.encode(), text.encode(), hashlib.sha256).hexdigest()
