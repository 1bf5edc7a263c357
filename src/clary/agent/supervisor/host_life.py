"""The life of one host, phase by phase, once its plan is known.

Where: `supervisor` calls it from its single thread with orders and with events of other threads:

    PREPARING --(every part done)--> PREPARED --RUN--> RUNNING --(every process gone, checkpoints stored)--> EXITED
    EXITED --UPLOAD--> UPLOADING --> DONE;   STOP, or an error, leads to EXITED from every phase before it.
    DONE --UPLOAD--> UPLOADING   on a host that has staged its share and becomes leader, as the first leader was lost

Both EXITED and DONE can make the job terminal, so each is entered only after the service has stored every log line, or
after the wait for it was given up. The steps from an order to stop until EXITED have limits (`contract.stop_limits`),
because the service counts a host as lost that exceeds their sum.

An object store that does not answer is asked again until the results are stored. After another error that may pass,
such as an object that is not whole in the store, the upload is repeated a few times. The wait ends with the attempt:
the service ends it after `upload_timeout_s`, and an agent that no service answers leaves after a day (`service_watch`).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from clary.agent.checkpoints.outcomes import Flushed, Listeners
from clary.agent.metrics.host_metrics import UPLOAD_ROWS_S
from clary.agent.supervisor.failures import failure_of, is_expected
from clary.agent.supervisor.host_health import HostHealth
from clary.agent.supervisor.last_flush import LastFlush
from clary.agent.supervisor.preparation import Preparation
from clary.agent.supervisor.program_companions import ProgramCompanions
from clary.agent.supervisor.program_end import end_of
from clary.agent.supervisor.program_watch import ProgramWatch, exit_in_words
from clary.agent.supervisor.steps import Uploaded
from clary.agent.supervisor.surroundings import Surroundings
from clary.base.errors import ClaryError, ContractError, ObjectStoreError
from clary.base.plain import from_plain
from clary.contract.agent_protocol import (
    FAILURE_GRACE_S,
    OMITS_EMPTY_MODEL,
    HostPhase,
    Order,
    OrderKind,
    ProcessExit,
    StagedPart,
    UploadRole,
)
from clary.contract.gpu_errors import xid_in_words
from clary.contract.launch_plan import LaunchPlan
from clary.contract.stop_limits import LAST_FILES_S, LAST_LOOK_S, LAST_ROWS_S

BEFORE_EXIT = (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING)
_JOIN_S = 5.0
_LOOK_SHARE = 0.25  # of the grace, at most, for the look at the checkpoint folder before SIGTERM
# Between uploads that the object store did not answer, each of which has tried every request for about half a minute.
_FIRST_UPLOAD_PAUSE_S = 2.0
_LONGEST_UPLOAD_PAUSE_S = 60.0
_MAX_REPEATS = 3  # of an upload that the object store has answered, and that has failed in a way that may pass
_LINES_SHARE = 0.5  # of the upload's remaining time, for the last log lines
_TENSORS_SHARE = 0.5  # of the same time, for saved tensors

logger = logging.getLogger(__name__)


class HostLife:
    """Executes orders and moves the host from phase to phase; only the supervisor's thread calls its methods."""

    def __init__(self, plan: LaunchPlan, *, host: str, around: Surroundings) -> None:
        self._plan = plan
        self._host = plan.host(host)
        self._around = around
        self._board = around.board
        self._log = around.log
        self._steps = around.steps
        self._post = around.post
        self._health = HostHealth(plan, host=host, board=around.board, log=around.log)
        self._preparation = Preparation(
            around.steps,
            on_timing=around.board.add_timing,
            on_done=lambda error: self._post(lambda: self._on_prepared(error)),
            on_wait=lambda sentence: self._post(lambda: self._add_notes([sentence])),
            beside={"health": self._health.check} if self._health.is_wanted else {},
        )
        self._is_run_ordered = self._is_stopped = self._are_companions_prepared = False
        self._began_at_s = time.monotonic()
        self._watch: ProgramWatch | None = None
        self._upload: threading.Thread | None = None
        self._upload_began_s = 0.0  # monotonic time
        self._is_ending = threading.Event()  # set when every step is aborted
        self.companions = ProgramCompanions(
            plan,
            host=host,
            around=around,
            on_hung=lambda words: self._post(lambda: self._on_hung(words)),
            on_note=lambda note: self._post(lambda: self._add_notes([note])),
        )
        self._flush = LastFlush(plan, on_done=lambda outcome: self._post(lambda: self._on_flushed(outcome)))

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called: by an order, or by a notice that the host's capacity ends."""
        return self._is_stopped

    def start(self) -> None:
        """Start the preparation."""
        if self._host is self._plan.hosts[0]:
            self._log.say(*self._plan.warnings)
        self._health.begin()
        self._preparation.start()
        self.companions.metrics.start()

    def obey(self, order: Order) -> None:
        """Execute an order if it fits the current phase; PREPARE and RELEASE need no action here."""
        if order.kind is OrderKind.RUN:
            self._is_run_ordered = True
            if self._board.phase is HostPhase.PREPARED:
                self._run_program()
        elif order.kind is OrderKind.STOP:
            self.stop(order.grace_s, reason=order.reason)
        elif order.kind is OrderKind.UPLOAD:
            self._begin_upload(order.arguments)

    def say_notice(self, why: str) -> None:
        """Log that the host's capacity ends."""
        self._log.say(f"the capacity of this host is taken back ({why})")

    def stop(self, grace_s: float, *, reason: str) -> None:
        """Abort the preparation, or end the program within `grace_s`; do nothing if the program has ended."""
        why = f" ({reason})" if reason else ""
        self._is_stopped = True
        self._flush.expect_stop(grace_s, reason=reason)
        if self._board.phase in (HostPhase.PREPARING, HostPhase.PREPARED):
            self._preparation.abort()
            self._health.abort()
            self._log.say(f"stopped before the program was started{why}")
            self._enter_exited()
        elif self._watch is not None:
            if not self._watch.is_stopping:
                sigterm = "it has had SIGTERM" if self._watch.program.was_signalled else "SIGTERM now"
                how = f"{sigterm}, SIGKILL in {grace_s:.4g} s" if grace_s > 0 else "SIGKILL now"
                self._log.say(f"stopping the program{why}: {how}")
            if grace_s > 0 and self._watch.would_kill_sooner(grace_s):
                self._announce_stop(grace_s, reason=reason)
            self._signal_end(self._watch, grace_s)

    def due_at_s(self) -> float | None:
        """Return the monotonic time at which to call `act_if_due`; None if no call is due."""
        return self._watch.due_at_s if self._watch is not None else None

    def act_if_due(self) -> None:
        """Kill the program, or stop waiting for it, if a deadline of its stop has passed."""
        if self._watch is None:
            return
        if self._watch.is_kill_due:
            self._look_at_checkpoints(LAST_LOOK_S)
        done = self._watch.act_if_due()
        if done is not None:
            self._log.say(done)
            logger.warning(done)
        if self._watch.is_beyond_killing:
            self._board.add_note(done or "")
            self._end_program()

    def end_after_defect(self, error: Exception) -> bool:
        """Go to the next phase in which the service can end the host; return False if the agent can only exit."""
        if self._board.facts.failure is None:
            self._board.note(failure=failure_of(error))
        if self._board.phase is HostPhase.DONE:
            return False
        self.end_everything()
        self._board.enter(HostPhase.EXITED if self._board.phase in BEFORE_EXIT else HostPhase.DONE)
        return True

    def end_everything(self) -> None:
        """Kill the program and abort every step at once; a second call does nothing."""
        self._is_ending.set()
        watch, self._watch = self._watch, None
        self.companions.abort()
        self._health.abort()
        if watch is not None:
            watch.close()
        if self._board.phase in BEFORE_EXIT:
            self._preparation.abort()
        if self._upload is not None and self._upload.is_alive():
            self._steps.abort()
        if self._steps.checkpoints is not None:
            self._steps.checkpoints.abort()

    def close(self) -> bool:
        """Free all resources; return whether all threads have ended."""
        self.end_everything()
        deadline_s = time.monotonic() + _JOIN_S
        has_ended = self._preparation.join(_JOIN_S)
        if self._upload is not None:
            self._upload.join(max(0.0, deadline_s - time.monotonic()))
            has_ended = has_ended and not self._upload.is_alive()
        has_ended = self._flush.join(max(0.0, deadline_s - time.monotonic())) and has_ended
        has_ended = self._health.close(max(0.0, deadline_s - time.monotonic())) and has_ended
        has_ended = self.companions.close(max(0.0, deadline_s - time.monotonic())) and has_ended
        self._steps.close()
        return has_ended

    def _announce_stop(self, grace_s: float, *, reason: str) -> None:
        """Write the notice that programs read at SIGTERM; the stop continues if it cannot be written."""
        try:
            self._steps.announce_stop(reason=reason, grace_s=grace_s)
        except OSError as error:
            self._log.say(f"the notice of the stop could not be written: {error}")

    def _signal_end(self, watch: ProgramWatch, grace_s: float) -> None:
        """Stop the program within `grace_s` from now; before its first signal, look at the checkpoint folder.

        A look that takes longer than it may still leaves half the grace, since a grace of 0 would leave out SIGTERM.
        """
        began_s = time.monotonic()
        if not watch.is_stopping and grace_s > 0:
            self._look_at_checkpoints(min(LAST_LOOK_S, _LOOK_SHARE * grace_s))
        watch.stop(max(grace_s / 2, grace_s - (time.monotonic() - began_s)))

    def _look_at_checkpoints(self, limit_s: float) -> None:
        """Record the files that are closed now, since they count as whole only if their writer was alive after it."""
        checkpoints = self._steps.checkpoints
        if checkpoints is not None and checkpoints.is_mirroring:
            checkpoints.look_now(limit_s)

    def _on_prepared(self, error: Exception | None) -> None:
        if self._board.phase is not HostPhase.PREPARING:
            return
        self._add_notes(self._steps.notes)
        if error is not None:
            self._health.abort()
            if not is_expected(error):
                logger.error("unexpected error while preparing", exc_info=error)
            failure = failure_of(error)
            self._log.say(f"preparation failed: {failure.message}")
            self._enter_exited(failure=failure)
            return
        seconds = time.monotonic() - self._began_at_s
        parts = ", ".join(f"{part} {took:.2f} s" for part, took in self._board.facts.timings_s.items())
        self._log.say(f"prepared in {seconds:.2f} s: {parts}", *self._steps.summaries)
        if self._steps.checkpoints is not None:
            self._log.say(self._steps.checkpoints.summary)
            self._board.note(checkpoints=self._steps.checkpoints.facts)
        self._board.enter(HostPhase.PREPARED)
        if self._is_run_ordered:
            self._run_program()
        else:
            self._prepare_companions()
            self._steps.make_program_ready(self._log)  # while the service waits for the other hosts

    def _run_program(self) -> None:
        started_s = time.monotonic()
        self._health.make_way()
        try:
            if better := self._health.better_interface:
                self._steps.use_interface(better)
                self._log.say(f"the program meets its peers through {better}, which reaches all of them")
            self._prepare_companions()
            if self._steps.checkpoints is not None:
                self._steps.checkpoints.watch(lambda sentence: self._add_notes([sentence]))
            program = self._steps.start_program(self._log)
        except (ClaryError, OSError) as error:
            failure = failure_of(error)
            self._log.say(f"the program could not be started: {failure.message}")
            self._enter_exited(failure=failure)
            return
        self._watch = watch = ProgramWatch(
            program,
            on_exits=lambda exits: self._post(lambda: self._on_exits(watch, exits)),
            on_gone=lambda: self._post(lambda: self._on_gone(watch)),
            on_signalled=lambda: self._post(self._around.on_signalled),
            on_broken=lambda error: self._post(lambda: self._on_broken(watch, error)),
        )
        watch.start()
        self._begin_mirror(program.init_pid)
        self.companions.begin(program)
        self._health.start()
        self._board.add_timing("start", time.monotonic() - started_s)
        self._add_notes(self._steps.notes)
        self._board.enter(HostPhase.RUNNING, init_pid=program.init_pid, not_isolated=program.not_isolated)

    def _prepare_companions(self) -> None:
        if not self._are_companions_prepared:
            self._are_companions_prepared = True
            self.companions.prepare()

    def _begin_mirror(self, first_pid: int | None) -> None:
        if self._steps.checkpoints is not None:
            listeners = Listeners(
                tell=lambda facts: self._board.note(checkpoints=facts),
                say=self._log.say,
                note=lambda sentence: self._add_notes([sentence]),
            )
            self._steps.checkpoints.start(listeners, first_pid=first_pid)

    def _on_exits(self, watch: ProgramWatch, exits: Sequence[ProcessExit]) -> None:
        if watch is not self._watch:
            return
        failed = watch.take(exits)
        if failed is not None:
            self.companions.metrics.keep_gpu_errors()
        if failed is not None and watch.num_left and not watch.is_stopping:
            # Reported at once, so that other hosts do not wait for this host's remaining processes.
            self._board.tell(exits=tuple(watch.exits), gpu_errors=self.companions.metrics.gpu_errors())
            self._log.say(
                f"rank {failed.rank} ended with {exit_in_words(failed)}: stopping the other {watch.num_left}"
                f" processes of {self._host.name}"
            )
            self._signal_end(watch, FAILURE_GRACE_S)

    def _on_gone(self, watch: ProgramWatch) -> None:
        if watch is self._watch:
            self._end_program()

    def _on_hung(self, words: str) -> None:
        """End a program without progress, as demanded by `restart_hung`; its host counts as lost."""
        if self._watch is not None and not self._watch.is_stopping:
            self._log.say("stopping the program, because it hangs (setting restart_hung)")
            self.companions.hang.blame(words)
            self.companions.metrics.keep_gpu_errors()
            self._signal_end(self._watch, FAILURE_GRACE_S)

    def _on_broken(self, watch: ProgramWatch, error: Exception) -> None:
        if watch is self._watch:
            raise error  # runs in the supervisor's thread, whose error boundary ends the host

    def _end_program(self) -> None:
        """Collect the facts of the end after every process has ended, and report them to the service."""
        watch, self._watch = self._watch, None
        assert watch is not None
        self.companions.ended()
        self._health.ended()
        watch.close()
        self._log.end_output()
        end = end_of(
            watch,
            log=self._log,
            records=self._steps.error_records(),
            hang=self.companions.hang.failure,
            now=self._around.clock.now(),
        )
        self._add_notes(end.notes)
        self._log.say(*end.lines)
        self._board.add_timing("program", end.seconds)
        failure_file = self._steps.failure_file()
        gpu_errors = self.companions.metrics.gpu_errors()
        self._add_notes([f"GPU {error.gpu}: {xid_in_words(error.xid)}" for error in gpu_errors])
        facts = {
            "exits": tuple(watch.exits),
            "failure": end.failure,
            "clues": end.clues,
            "gpu_errors": gpu_errors,
            "failure_file": failure_file,
        }
        checkpoints = self._steps.checkpoints
        if checkpoints is None or not checkpoints.is_mirroring:
            self._enter_exited(**facts)
            return
        # Reported at once, so that other hosts do not wait for the checkpoints of a failed host.
        self._board.tell(**facts)
        has_finished = end.failure is None and bool(watch.exits) and all(item.exit_code == 0 for item in watch.exits)
        self._flush.begin(checkpoints, has_failed=end.failure is not None, has_finished=has_finished)

    def _on_flushed(self, outcome: Flushed) -> None:
        """End the RUNNING phase after the last checkpoints are stored or have failed."""
        if self._board.phase is not HostPhase.RUNNING:
            return
        facts = self._board.facts
        failure = facts.failure or self._flush.failure(outcome, facts.exits, facts.failure)
        if outcome.missed:
            sentence = self._flush.in_words(outcome)
            self._log.say(sentence)
            self._board.add_note(sentence)
        self._enter_exited(failure=failure)

    def _enter_exited(self, **changes: Any) -> None:
        if self._is_stopped or changes.get("failure") or self._board.facts.failure is not None:
            self.companions.debugging.wait_stored(LAST_FILES_S, is_vain=self._around.is_vain)
        self._drain(LAST_ROWS_S, most_s=self._around.drain_most_s)
        self._board.enter(HostPhase.EXITED, **changes)

    def _begin_upload(self, arguments: Mapping[str, Any]) -> None:
        if self._board.phase not in (HostPhase.EXITED, HostPhase.DONE):
            logger.warning("the order to upload does not fit in phase %s", self._board.phase)
            return
        try:
            role = UploadRole(arguments.get("role", ""))
            staged = [from_plain(StagedPart, part) for part in arguments.get("staged", ())]
        except ValueError as error:
            raise ContractError(f"order to upload: {error}; its arguments were {dict(arguments)!r}") from error
        self._health.abort()  # every host's program has ended
        self._board.enter(HostPhase.UPLOADING)
        omits = arguments.get(OMITS_EMPTY_MODEL) is True
        self._upload_began_s = time.monotonic()
        self._upload = threading.Thread(target=self._run_upload, args=(role, staged, omits), name="upload", daemon=True)
        self._upload.start()

    def _run_upload(self, role: UploadRole, staged: Sequence[StagedPart], omits_empty_model: bool) -> None:
        outcome: Uploaded | Exception
        try:
            outcome = self._upload_until_answered(role, staged, omits_empty_model)
        except Exception as error:  # noqa: BLE001 - boundary: agent supervisor; told in its thread
            outcome = error
        left_s = self._plan.upload_timeout_s - (time.monotonic() - self._upload_began_s)
        notes = self.companions.debugging.finish(upload_s=_TENSORS_SHARE * left_s)
        self._post(lambda: self._add_notes(notes))
        self._board.add_timing("upload", time.monotonic() - self._upload_began_s)
        self._post(lambda: self._on_uploaded(outcome))

    def _upload_until_answered(
        self, role: UploadRole, staged: Sequence[StagedPart], omits_empty_model: bool
    ) -> Uploaded:
        """Upload, and begin again after an error that may pass; a repeated upload gives the same objects.

        While the object store does not answer, the upload is repeated without a limit; after any other error that may
        pass, such as an object that the store accepted and does not show, `_MAX_REPEATS` times in all.
        """
        pause_s, is_told, num_repeats = _FIRST_UPLOAD_PAUSE_S, False, 0
        while True:
            try:
                return self._steps.upload(role, staged, omits_empty_model=omits_empty_model)
            except Exception as error:
                failure, is_unanswered = failure_of(error), isinstance(error, ObjectStoreError)
                num_repeats += not is_unanswered
                if not failure.retryable or self._is_ending.is_set() or num_repeats > _MAX_REPEATS:
                    raise
                logger.warning("the upload is tried again in %g s: %s", pause_s, error)
                if not is_told:
                    is_told = True
                    limit_s = self._plan.upload_timeout_s
                    most = f" for {limit_s:.0f} s in all (setting upload_timeout_s)"
                    sentence = (
                        "results could not be uploaded yet; they are kept, and the upload is tried again"
                        f"{most if is_unanswered else f', {_MAX_REPEATS} times at most'}: {failure.message}"
                    )
                    self._post(partial(self._add_notes, [sentence]))
                if self._is_ending.wait(pause_s):
                    raise
            pause_s = min(2 * pause_s, _LONGEST_UPLOAD_PAUSE_S)

    def _on_uploaded(self, outcome: Uploaded | Exception) -> None:
        if self._board.phase is not HostPhase.UPLOADING:
            return
        self._add_notes(self._steps.notes)
        if isinstance(outcome, Uploaded):
            changes: dict[str, Any] = {
                "staged": outcome.staged,
                "uploaded": outcome.uris,
                "results_are_empty": outcome.is_empty,
            }
            if outcome.uris:
                took_s = self._board.facts.timings_s["upload"]
                self._log.say(f"results uploaded in {took_s:.2f} s: {', '.join(outcome.uris)}")
            self._board.tell(**changes)  # before the wait for log lines: the results stand whatever happens to the host
        else:
            if not is_expected(outcome):
                logger.error("unexpected error while uploading", exc_info=outcome)
            failure = failure_of(outcome)
            sentence = f"results could not be uploaded: {failure.message}"
            self._log.say(sentence)
            self._board.add_note(sentence)
            # The first cause stays the reported cause: results missing after a failed program are only noted.
            changes = {"failure": self._board.facts.failure or failure, "could_not_upload": failure.retryable}
        left_s = max(0.0, self._plan.upload_timeout_s - (time.monotonic() - self._upload_began_s))
        self._drain(UPLOAD_ROWS_S, most_s=_LINES_SHARE * left_s)
        self._board.enter(HostPhase.DONE, **changes)

    def _drain(self, last_rows_s: float, *, most_s: float = math.inf) -> None:
        """Wait until log lines are stored, `most_s` at most; meanwhile send metric rows, for `last_rows_s` at most."""
        self.companions.flush(last_rows_s)
        self._log.drain(self._around.drain_s, give_up=self._around.is_vain, most_s=most_s)
        self.companions.wait_flushed()

    def _add_notes(self, notes: Sequence[str]) -> None:
        for note in notes:
            if note not in self._board.facts.notes:
                self._board.add_note(note)
                self._log.say(note)
