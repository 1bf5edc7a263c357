"""Numbers and pictures that a program writes into files about its own training, and its progress.

Where: `POST /clary/v1/agents/{job}/{attempt}/{host}/training` carries a TrainingBatch and is answered by a
TrainingReceipt. Findings are numbered from 0 over the life of one host in one attempt, so that no finding is stored
twice. A program itself may report its progress to STATUS_PATH (`control.server.training_routes`).
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
        kind: of the finding.
        name: of the metric, or tag.
        at_ms: milliseconds since 1970, as the program wrote them.
        step: of the training; None if the program gave no step.
        value: of a scalar; None unless it is a finite number.
        data: of a histogram or an image.
        file: path of the file that holds it, below the host's `/opt/ml`.
        offset: of the record in the file, in bytes.
        size_bytes: of an image as the program wrote it.
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
        done: of `total`, in `unit`; of the whole training where that is known.
        total: None if unknown.
        unit: steps, epochs or percent.
        source: kubeflow, trainer_state or log.
        at_ms: milliseconds since 1970.
        eta_s: seconds until the end; None until a rate is known.
        epoch: number of the current epoch, from 1; None if unknown.
        max_epoch: number of epochs in all.
        step_in_epoch: steps of the current epoch that are done.
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
    progress: TrainingProgress | None = None  # None without news
    num_dropped: int = 0  # findings dropped so far, over the host's life


@dataclass(frozen=True, kw_only=True)
class TrainingReceipt:
    """Acknowledgement of the findings that the service has stored."""

    next: int  # findings with lower numbers are stored, or refused for good


def status_token(agent_token: str, *, job: str, attempt: int, host: str) -> str:
    """Return the token of STATUS_PATH for a host's program; the agents' token cannot be derived from it.

    Args:
        agent_token: of the attempt; the key of the HMAC.
        job: its name.
        attempt: of the job.
        host: its name.
    """
    text = f"training status:{job}:{attempt}:{host}"
    return hmac.new(agent_token.encode(), text.encode(), hashlib.sha256).hexdigest()
