"""Reads the values that one host's program writes about its training, and sends them to the service.

Where: `program_companions` prepares it before the program starts, notifies it when the program has ended, and waits a
moment for its last values before a phase that can make the job terminal. No error in this module ends the host's life.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from clary.agent.companion import Companion, WatchedProgram
from clary.agent.small_files import write_whole
from clary.agent.training.file_kinds import folders_to_watch
from clary.agent.training.file_reading import FileReading
from clary.agent.training.progress_watch import ProgressWatch
from clary.agent.training.training_watch import TrainingReceiver, TrainingWatch
from clary.base.clock import Clock
from clary.contract.launch_plan import LaunchPlan
from clary.contract.ml_tree import OPT_ML
from clary.contract.stop_limits import LAST_VALUES_S
from clary.contract.training_values import STATUS_TOKEN_FILE, status_token

_JOIN_S = 5.0
_CONFIGURATION = "tensorboardoutputconfig"
_DEFAULT_FOLDER = "output/tensorboard"

logger = logging.getLogger(__name__)


class HostTraining(Companion):
    """Reads a program's files on its training; methods belong to the supervisor's thread.

    Args:
        plan: may name a folder for TensorBoard.
        host: name of this host.
        service: receives the values.
        progress: finds progress in the log.
        clock: time of day.
        on_note: called with a sentence for the user; from any thread.
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
        self._ml_folder: Path | None = None  # set once `/opt/ml` exists
        self._is_away = False  # whether the service does not answer
        self._watch: TrainingWatch | None = None

    def prepare(self, ml_folder: Path) -> None:
        """Mark values in the host's `/opt/ml` as known before the program writes there."""
        self._ml_folder = ml_folder
        if self._is_away:
            self._hand_out_token()
        try:
            configuration = self._plan.config_documents.get(_CONFIGURATION)
            folder = self._logs_folder(configuration) if isinstance(configuration, Mapping) else _DEFAULT_FOLDER
            reading = FileReading(ml_folder, folders_to_watch(folder), on_note=self._on_note)
            reading.skip_what_stands()
            self._watch = TrainingWatch(
                self._service, reading=reading, progress=self._progress, clock=self._clock, on_note=self._on_note
            )
        except Exception:  # boundary: reading a training's values must not end it
            logger.exception("values of the training are not read on %s", self._host)

    def take_note_of_service(self, *, is_away: bool) -> None:
        """Empty the token file of the program's reports while the service does not answer; from any thread.

        transformers' callback posts from the training's own thread and waits 5 s for each answer, every 5 s; with an
        empty token it posts nothing. It reads the token again after 5 minutes, so that an outage slows the training for
        5 minutes at most.
        """
        self._is_away = is_away
        self._hand_out_token()

    def begin(self, program: WatchedProgram, ml_folder: Path) -> None:
        """Begin to read files, as the program runs now."""
        if self._watch is not None:
            self._watch.start()

    def ended(self) -> None:
        """Read the files once more and send every value; `wait_flushed` waits until they are sent."""
        if self._watch is not None:
            self._watch.stop()

    def wait_flushed(self, is_vain: Callable[[], bool]) -> None:
        """Wait a moment at most until the last values are sent; stop waiting once the wait is useless."""
        if self._watch is not None:
            self._watch.join(LAST_VALUES_S, is_vain=is_vain)

    def abort(self) -> None:
        """Stop reading and sending; return at once, harmless when repeated."""
        if self._watch is not None:
            self._watch.abort()

    def close(self, timeout_s: float = _JOIN_S) -> bool:
        """Wait for the thread to end; return whether it did."""
        return self._watch is None or self._watch.join(timeout_s)

    def _hand_out_token(self) -> None:
        if self._ml_folder is None:
            return
        plan = self._plan
        token = status_token(plan.agent_token, job=plan.job_name, attempt=plan.attempt, host=self._host)
        try:
            write_whole(self._ml_folder, STATUS_TOKEN_FILE, b"" if self._is_away else token.encode())
        except OSError as error:  # the program owns the folder, and may have ended
            logger.info("the token of %s is left as it is: %s", self._host, error)
        except Exception:  # boundary: the heartbeat calls this, and the host would count as lost
            logger.exception("the token of %s is left as it is", self._host)

    def _logs_folder(self, configuration: Mapping[str, Any]) -> str | None:
        """Return TensorBoard's LocalPath relative to `/opt/ml`; None, with a note, if it lies elsewhere."""
        path = PurePosixPath(str(configuration.get("LocalPath") or OPT_ML / _DEFAULT_FOLDER))
        if not path.is_relative_to(OPT_ML) or ".." in path.parts or path == PurePosixPath(OPT_ML):
            self._on_note(f"TensorBoardOutputConfig: LocalPath {path} is not below {OPT_ML}: its files are not read")
            return None
        return str(path.relative_to(OPT_ML))
