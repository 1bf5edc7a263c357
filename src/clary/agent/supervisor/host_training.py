"""What one host's program writes about its training, from its start to its end, and the way of that to the service.

Where: `host_life` prepares it before the program starts, tells it when the program is gone, and waits a moment for its
last values before a phase that can make the job terminal. Nothing in here raises into the host's life.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from clary.agent.training.event_mirror import EventMirror, mirror_of
from clary.agent.training.file_kinds import folders_to_watch
from clary.agent.training.file_reading import FileReading
from clary.agent.training.progress_watch import ProgressWatch
from clary.agent.training.training_watch import TrainingReceiver, TrainingWatch
from clary.contract.clock import Clock
from clary.contract.launch_plan import LaunchPlan
from clary.contract.ml_tree import OPT_ML

LAST_VALUES_S = 10.0  # longest time that the end of a program waits for its last values, while the service answers
_VAIN_LOOK_S = 0.2
_JOIN_S = 5.0
_CONFIGURATION = "tensorboardoutputconfig"
_DEFAULT_FOLDER = "output/tensorboard"

logger = logging.getLogger(__name__)


class HostTraining:
    """Reads what a program writes of its training; methods belong to the supervisor's thread, less `finish_mirror`.

    Args:
        plan: may name a folder for TensorBoard.
        host: name of this host.
        service: where values go.
        progress: what the log says of progress.
        clock: time of day.
        on_note: told, in a sentence, what a user should know; from any thread.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        *,
        host: str,
        service: TrainingReceiver,
        progress: ProgressWatch,
        clock: Clock,
        on_note: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._host = host
        self._service = service
        self._progress = progress
        self._clock = clock
        self._on_note = on_note
        self._watch: TrainingWatch | None = None
        self._mirror: EventMirror | None = None

    def prepare(self, ml_folder: Path) -> None:
        """Take note of what stands in the host's `/opt/ml` before the program writes to it."""
        try:
            configuration = self._plan.config_documents.get(_CONFIGURATION)
            folder = self._logs_folder(configuration) if isinstance(configuration, Mapping) else _DEFAULT_FOLDER
            reading = FileReading(ml_folder, folders_to_watch(folder), on_note=self._on_note)
            reading.skip_what_stands()
            self._watch = TrainingWatch(
                self._service, reading=reading, progress=self._progress, clock=self._clock, on_note=self._on_note
            )
            if isinstance(configuration, Mapping) and folder is not None:
                prefix = str(configuration.get("S3OutputPath") or "")
                self._mirror = mirror_of(self._plan, ml_folder, folder, prefix=prefix, on_note=self._on_note)
        except Exception:  # boundary: what is told about a training must not end it
            logger.exception("values of the training are not read on %s", self._host)

    def begin_program(self) -> None:
        """Read while the program runs."""
        for part in (self._watch, self._mirror):
            if part is not None:
                part.start()

    def end_program(self) -> None:
        """Look once more and send what there is; `settle` waits for that."""
        if self._watch is not None:
            self._watch.finish()

    def settle(self, is_vain: Callable[[], bool]) -> None:
        """Wait until the last values are sent, for a moment at most; less once there is no use in it."""
        deadline_s = time.monotonic() + LAST_VALUES_S
        while self._watch is not None and (left_s := deadline_s - time.monotonic()) > 0 and not is_vain():
            if self._watch.wait(min(left_s, _VAIN_LOOK_S)):
                return

    def finish_mirror(self) -> None:
        """Send what is left of TensorBoard's files; from the thread of the upload."""
        if self._mirror is not None:
            self._mirror.finish()

    def end(self) -> None:
        """Read and send no more; returns at once, harmless when repeated."""
        for part in (self._watch, self._mirror):
            if part is not None:
                part.end()

    def join(self, timeout_s: float = _JOIN_S) -> bool:
        """Wait for the threads to end; return whether they did."""
        deadline_s = time.monotonic() + timeout_s
        has_ended = self._watch is None or self._watch.join(timeout_s)
        return (self._mirror is None or self._mirror.join(max(0.0, deadline_s - time.monotonic()))) and has_ended

    def _logs_folder(self, configuration: Mapping[str, Any]) -> str | None:
        """Return LocalPath below `/opt/ml`; None, with a note, where it lies elsewhere."""
        path = PurePosixPath(str(configuration.get("LocalPath") or OPT_ML / _DEFAULT_FOLDER))
        if not path.is_relative_to(OPT_ML) or ".." in path.parts or path == PurePosixPath(OPT_ML):
            self._on_note(f"TensorBoardOutputConfig: LocalPath {path} is not below {OPT_ML}: its files are not read")
            return None
        return str(path.relative_to(OPT_ML))
