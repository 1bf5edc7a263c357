"""The life of one host, phase by phase, once its plan is known.

Where: `supervisor` calls it from its one thread with orders and with what the other threads have to say:

    PREPARING --(every part done)--> PREPARED --RUN--> RUNNING --(every process gone, checkpoints stored)--> EXITED
    EXITED --UPLOAD--> UPLOADING --> DONE;   STOP, or an error, leads to EXITED from every phase before it.

Before EXITED and before DONE every log line is stored by the service, because both can make the job terminal.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from clary.agent.checkpoints.outcomes import Flushed, Listeners
from clary.agent.metrics.shipper import SampleReceiver
from clary.agent.supervisor.clues import bounded, merge
from clary.agent.supervisor.fact_board import FactBoard
from clary.agent.supervisor.failures import failure_of, is_expected
from clary.agent.supervisor.hang_alarm import HangAlarm
from clary.agent.supervisor.host_debugging import HostDebugging
from clary.agent.supervisor.host_health import HostHealth
from clary.agent.supervisor.host_log import HostLog
from clary.agent.supervisor.host_metrics import LAST_ROWS_S, UPLOAD_ROWS_S, HostMetrics
from clary.agent.supervisor.host_training import HostTraining
from clary.agent.supervisor.last_flush import LastFlush
from clary.agent.supervisor.preparation import Preparation
from clary.agent.supervisor.profile_windows import ProfileReceiver, ProfileWindows
from clary.agent.supervisor.program_watch import ProgramWatch, exit_in_words
from clary.agent.supervisor.rendezvous_policy import meeting_place
from clary.agent.supervisor.rendezvous_watch import RendezvousWatch
from clary.agent.supervisor.stack_dumps import StackDumps
from clary.agent.supervisor.steps import Steps, Uploaded
from clary.agent.training.training_watch import TrainingReceiver
from clary.contract.agent_protocol import (
    FAILURE_GRACE_S,
    Failure,
    HostPhase,
    Order,
    OrderKind,
    ProcessExit,
    StagedPart,
    UploadRole,
)
from clary.contract.clock import Clock
from clary.contract.deep_profiles import window_of
from clary.contract.errors import ClaryError, ContractError, Fault
from clary.contract.failure_reasons import OUT_OF_MEMORY
from clary.contract.launch_plan import LaunchPlan
from clary.contract.plain import from_plain
from clary.contract.stack_dumps import HostDump

BEFORE_EXIT = (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING)
_JOIN_S = 5.0
_LAST_FILES_S = 5.0  # for saved tensors of a program that was stopped or has failed: no upload may follow
_PROFILE_S = 10.0  # for traces of a program that has ended; nothing to wait for where none are being taken

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a host's life needs besides its plan.

    Attributes:
        board: facts, told to the service.
        log: takes output and the agent's own lines.
        steps: the work itself.
        post: has a function called in the supervisor's thread.
        is_vain: whether there is no use in waiting for the service any more.
        drain_s: longest time without progress that log lines get.
        send_dump: hands a dump of the host's processes to the service.
        samples: takes what the host measures of itself.
        training: takes what the program writes of its training.
        profiles: takes profiles of the host's ranks.
        clock: time of day of what is measured.
    """

    board: FactBoard
    log: HostLog
    steps: Steps
    post: Callable[[Callable[[], None]], None]
    is_vain: Callable[[], bool]
    drain_s: float
    send_dump: Callable[[HostDump], None]
    samples: SampleReceiver
    training: TrainingReceiver
    profiles: ProfileReceiver
    clock: Clock


class HostLife:
    """Carries out orders and moves the host from phase to phase; every method belongs to the supervisor's thread."""

    def __init__(self, plan: LaunchPlan, *, host: str, around: Surroundings) -> None:
        self._plan = plan
        self._host = plan.host(host)
        self._around = around
        self._board = around.board
        self._log = around.log
        self._steps = around.steps
        self._post = around.post
        self._health = HostHealth(plan, host=host, board=around.board, log=around.log)
        self._metrics = HostMetrics(plan, host=host, board=around.board, service=around.samples, clock=around.clock)
        self._training = HostTraining(
            plan,
            host=host,
            service=around.training,
            progress=around.log.progress,
            clock=around.clock,
            on_note=lambda note: self._post(lambda: self._add_notes([note])),
        )
        self._preparation = Preparation(
            around.steps,
            on_timing=around.board.add_timing,
            on_done=lambda error: self._post(lambda: self._on_prepared(error)),
            beside={"health": self._health.check} if self._health.is_wanted else {},
        )
        self._is_run_ordered = self._is_stopped = False
        self._began_at_s = time.monotonic()
        self._watch: ProgramWatch | None = None
        self._upload: threading.Thread | None = None
        self.dumps = StackDumps(self._host, send=around.send_dump)
        self.profiles = ProfileWindows(
            self._host.name,
            attempt=plan.attempt,
            window=window_of(plan.config_documents.get("profilerconfig")),
            ml_folder=lambda: around.steps.ml_folder,
            receiver=around.profiles,
        )
        self._hang = HangAlarm(
            plan,
            board=around.board,
            log=around.log,
            take_dump=self.dumps.take_unasked,
            on_hung=lambda words: self._post(lambda: self._on_hung(words)),
            has_gpus=bool(self._host.resources.gpu_indices),
        )
        self._rendezvous: RendezvousWatch | None = None
        self._debugging = HostDebugging(plan, host=host, board=around.board, steps=around.steps, say=around.log.say)
        self._flush = LastFlush(plan, on_done=lambda outcome: self._post(lambda: self._on_flushed(outcome)))

    def start(self) -> None:
        """Begin to prepare."""
        if self._host is self._plan.hosts[0]:
            self._log.say(*self._plan.warnings)
        self._health.begin()
        self._preparation.start()
        self._metrics.start()

    def obey(self, order: Order) -> None:
        """Carry out an order as far as it makes sense in this phase; PREPARE and RELEASE ask nothing here."""
        if order.kind is OrderKind.RUN:
            self._is_run_ordered = True
            if self._board.phase is HostPhase.PREPARED:
                self._run_program()
        elif order.kind is OrderKind.STOP:
            self.stop(order.grace_s, reason=order.reason)
        elif order.kind is OrderKind.UPLOAD:
            self._begin_upload(order.arguments)

    def stop(self, grace_s: float, *, reason: str) -> None:
        """Give up preparing, or have the program end within `grace_s`; nothing if it has ended already."""
        why = f" ({reason})" if reason else ""
        self._is_stopped = True
        self._flush.expect_stop(grace_s, reason=reason)
        if self._board.phase in (HostPhase.PREPARING, HostPhase.PREPARED):
            self._preparation.give_up()
            self._health.close()
            self._log.say(f"stopped before the program was started{why}")
            self._enter_exited()
        elif self._watch is not None:
            if not self._watch.is_stopping:
                how = f"SIGTERM now, SIGKILL in {grace_s:g} s" if grace_s > 0 else "SIGKILL now"
                self._log.say(f"stopping the program{why}: {how}")
            if grace_s > 0 and self._watch.would_kill_sooner(grace_s):
                self._announce_stop(grace_s, reason=reason)
            self._watch.stop(grace_s)

    def due_at_s(self) -> float | None:
        """Return the monotonic time at which `act_if_due` wants to be called; None for no time."""
        return self._watch.due_at_s if self._watch is not None else None

    def act_if_due(self) -> None:
        """Do what a deadline asks for."""
        if self._watch is None:
            return
        done = self._watch.act_if_due()
        if done is not None:
            self._log.say(done)
            logger.warning(done)
        if self._watch.is_beyond_killing:
            self._board.add_note(done or "")
            self._end_program()

    def end_after_defect(self, error: Exception) -> bool:
        """Go to the next phase in which the service can end the host; false when there is none but to leave."""
        if self._board.facts.failure is None:
            self._board.note(failure=failure_of(error))
        if self._board.phase is HostPhase.DONE:
            return False
        self.end_everything()
        self._board.enter(HostPhase.EXITED if self._board.phase in BEFORE_EXIT else HostPhase.DONE)
        return True

    def end_everything(self) -> None:
        """Kill the program and break off every step, at once; harmless when repeated."""
        watch, self._watch = self._watch, None
        self._hang.close()
        if self._rendezvous is not None:
            self._rendezvous.close()
        self._health.close()
        self._metrics.end()
        self._debugging.end()
        self._training.end()
        if watch is not None:
            watch.close()
        if self._board.phase in BEFORE_EXIT:
            self._preparation.give_up()
        if self._upload is not None and self._upload.is_alive():
            self._steps.give_up()
        if self._steps.checkpoints is not None:
            self._steps.checkpoints.give_up()

    def measure_every(self, interval_s: float) -> None:
        """Have the host measured so often from now on; from any thread."""
        self._metrics.measure_every(interval_s)

    def take_note_of_service(self, *, is_away: bool) -> None:
        """Spare the program its requests to a service that does not answer; from any thread."""
        self._training.take_note_of_service(is_away=is_away)

    def close(self) -> bool:
        """Free everything; return whether all threads have ended."""
        self.end_everything()
        deadline_s = time.monotonic() + _JOIN_S
        has_ended = self._preparation.join(_JOIN_S)
        if self._upload is not None:
            self._upload.join(max(0.0, deadline_s - time.monotonic()))
            has_ended = has_ended and not self._upload.is_alive()
        has_ended = self._flush.join(max(0.0, deadline_s - time.monotonic())) and has_ended
        has_ended = self._health.join(max(0.0, deadline_s - time.monotonic())) and has_ended
        has_ended = self._metrics.join(max(0.0, deadline_s - time.monotonic())) and has_ended
        has_ended = self._debugging.join(max(0.0, deadline_s - time.monotonic())) and has_ended
        has_ended = self._training.join(max(0.0, deadline_s - time.monotonic())) and has_ended
        self.dumps.close()
        self.profiles.close()
        self._steps.close()
        return has_ended

    def _announce_stop(self, grace_s: float, *, reason: str) -> None:
        """Leave the notice that programs find when SIGTERM comes; a stop goes on without it if need be."""
        try:
            self._steps.announce_stop(reason=reason, grace_s=grace_s)
        except OSError as error:
            self._log.say(f"the notice of the stop could not be written: {error}")

    def _on_prepared(self, error: Exception | None) -> None:
        if self._board.phase is not HostPhase.PREPARING:
            return
        self._add_notes(self._steps.notes)
        if error is not None:
            self._health.close()
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

    def _run_program(self) -> None:
        started_s = time.monotonic()
        self._health.make_way()
        try:
            if better := self._health.better_interface:
                self._steps.use_interface(better)
                self._log.say(f"the program meets its peers through {better}, which reaches all of them")
            self.profiles.begin()
            self._training.prepare(self._steps.ml_folder)
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
            on_broken=lambda error: self._post(lambda: self._on_broken(watch, error)),
        )
        watch.start()
        self._begin_mirror()
        self._debugging.begin()
        self.dumps.watch(program.init_pid, program.ranks_by_pid, self._steps.ml_folder)
        self.profiles.watch(program.ranks_by_pid)
        self._hang.start(program.init_pid)
        place = meeting_place(self._plan, self._host, num_processes=program.num_processes)
        self._rendezvous = RendezvousWatch(place, board=self._board)
        self._rendezvous.start(program.init_pid)
        self._health.start()
        self._training.begin_program()
        self._metrics.begin_program(program.init_pid, program.ranks_by_pid(), self._steps.ml_folder)
        self._board.add_timing("start", time.monotonic() - started_s)
        self._add_notes(self._steps.notes)
        self._board.enter(HostPhase.RUNNING, init_pid=program.init_pid, not_isolated=program.not_isolated)

    def _begin_mirror(self) -> None:
        if self._steps.checkpoints is not None:
            listeners = Listeners(
                tell=lambda facts: self._board.note(checkpoints=facts),
                say=self._log.say,
                note=lambda sentence: self._add_notes([sentence]),
            )
            self._steps.checkpoints.start(listeners)

    def _on_exits(self, watch: ProgramWatch, exits: Sequence[ProcessExit]) -> None:
        if watch is not self._watch:
            return
        failed = watch.take(exits)
        if failed is not None and watch.num_left and not watch.is_stopping:
            # Told at once: the other hosts of the job do not wait for what is left of this one.
            self._board.tell(exits=tuple(watch.exits))
            self._log.say(
                f"rank {failed.rank} ended with {exit_in_words(failed)}: stopping the other {watch.num_left}"
                f" processes of {self._host.name}"
            )
            watch.stop(FAILURE_GRACE_S)

    def _on_gone(self, watch: ProgramWatch) -> None:
        if watch is self._watch:
            self._end_program()

    def _on_hung(self, words: str) -> None:
        """End a program that gets nowhere, where that was asked for; its host is as good as lost."""
        if self._watch is not None and not self._watch.is_stopping:
            self._log.say("stopping the program, because it hangs (setting restart_hung)")
            self._hang.blame(words)
            self._watch.stop(FAILURE_GRACE_S)

    def _on_broken(self, watch: ProgramWatch, error: Exception) -> None:
        if watch is self._watch:
            raise error  # in the supervisor's thread, whose boundary ends the host

    def _end_program(self) -> None:
        """Every process is gone: gather what is to be known, and let the service know it."""
        watch, self._watch = self._watch, None
        assert watch is not None
        self._hang.close()
        self.dumps.forget()
        self.profiles.end_program(_PROFILE_S)
        if self._rendezvous is not None:
            self._rendezvous.close()
        self._health.end_watch()
        self._debugging.end_program()
        self._metrics.end_program()
        self._training.end_program()
        watch.close()
        self._log.end_output()
        failure = self._hang.failure or self._with_cause(watch)
        # Ranks that a launcher of another host has started leave records though every process of this one ends with 0.
        has_failed = any(item.exit_code != 0 for item in watch.exits)
        clues = merge(self._steps.error_records(), self._log.clues() if has_failed else ())
        seconds = time.monotonic() - watch.started_at_s
        now = self._around.clock.now()
        clues = bounded(clues, begin=now - timedelta(seconds=seconds + 1), end=now)
        self._log.say(*_summary(watch.exits, failure, seconds))
        self._board.add_timing("program", seconds)
        failure_file = self._steps.failure_file()
        facts = {"exits": tuple(watch.exits), "failure": failure, "clues": clues, "failure_file": failure_file}
        checkpoints = self._steps.checkpoints
        if checkpoints is None or not checkpoints.is_mirroring:
            self._enter_exited(**facts)
            return
        # Told at once: if this host has failed, the others do not wait for its checkpoints.
        self._board.tell(**facts)
        self._flush.begin(checkpoints, has_failed=failure is not None)

    def _on_flushed(self, outcome: Flushed) -> None:
        """The last checkpoints are stored, or will not be: only now the host has ended its program."""
        if self._board.phase is not HostPhase.RUNNING:
            return
        facts = self._board.facts
        failure = facts.failure or self._flush.failure(outcome, facts.exits, facts.failure)
        if outcome.missed:
            sentence = self._flush.in_words(outcome)
            self._log.say(sentence)
            self._board.add_note(sentence)
        self._enter_exited(failure=failure)

    def _with_cause(self, watch: ProgramWatch) -> Failure | None:
        """Return the program's failure with what is known of its cause: a full disk, the program's own words.

        A program that ended with 0 on a full disk has failed all the same: what it wrote may be cut short, and a job
        is never Completed while anything may be missing. What it left is uploaded as for every failed job.
        """
        failure, first, full_disk = watch.failure(), watch.first_failure(), watch.full_disk
        if failure is None or first is None or failure.fault != Fault.ALGORITHM.value:
            if full_disk is not None and watch.exits:
                self._add_notes([f"{full_disk}: results may be incomplete"])
                if failure is None:
                    return Failure(fault=Fault.USER.value, message=f"{full_disk}: results may be incomplete")
            return failure
        if failure.message.startswith(OUT_OF_MEMORY):
            return failure
        words = self._log.error_line(first.rank)
        causes = [failure.message, *([words] if words else [])]
        if full_disk is not None:
            causes.insert(0, full_disk)
        return replace(failure, message=": ".join(causes))

    def _enter_exited(self, **changes: Any) -> None:
        if self._is_stopped or changes.get("failure") or self._board.facts.failure is not None:
            self._debugging.settle(_LAST_FILES_S, give_up=self._around.is_vain)
        self._drain(LAST_ROWS_S)
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
        self._health.close()  # every host's program has ended
        self._board.enter(HostPhase.UPLOADING)
        self._upload = threading.Thread(target=self._run_upload, args=(role, staged), name="upload", daemon=True)
        self._upload.start()

    def _run_upload(self, role: UploadRole, staged: Sequence[StagedPart]) -> None:
        started_s = time.monotonic()
        try:
            outcome: Uploaded | Exception = self._steps.upload(role, staged)
        except Exception as error:  # noqa: BLE001 - boundary: agent supervisor; told in its thread
            outcome = error
        notes = self._debugging.finish()
        self._post(lambda: self._add_notes(notes))
        self._board.add_timing("upload", time.monotonic() - started_s)
        self._post(lambda: self._on_uploaded(outcome))

    def _on_uploaded(self, outcome: Uploaded | Exception) -> None:
        if self._board.phase is not HostPhase.UPLOADING:
            return
        self._add_notes(self._steps.notes)
        if isinstance(outcome, Uploaded):
            changes: dict[str, Any] = {"staged": outcome.staged, "uploaded": outcome.uris}
            if outcome.uris:
                took_s = self._board.facts.timings_s["upload"]
                self._log.say(f"results uploaded in {took_s:.2f} s: {', '.join(outcome.uris)}")
        else:
            if not is_expected(outcome):
                logger.error("unexpected error while uploading", exc_info=outcome)
            failure = failure_of(outcome)
            sentence = f"results could not be uploaded: {failure.message}"
            self._log.say(sentence)
            self._board.add_note(sentence)
            # The first cause stays the cause: results that are missing after a failed program are only noted.
            changes = {"failure": self._board.facts.failure or failure}
        self._drain(UPLOAD_ROWS_S)
        self._board.enter(HostPhase.DONE, **changes)

    def _drain(self, last_rows_s: float) -> None:
        """Have log lines stored; rows of metrics go beside them and may take `last_rows_s` at most."""
        self._metrics.hurry()
        self._log.drain(self._around.drain_s, give_up=self._around.is_vain)
        self._metrics.settle(last_rows_s)
        self._training.settle(self._around.is_vain)

    def _add_notes(self, notes: Sequence[str]) -> None:
        for note in notes:
            if note not in self._board.facts.notes:
                self._board.add_note(note)
                self._log.say(note)


def _summary(exits: Sequence[ProcessExit], failure: Failure | None, seconds: float) -> list[str]:
    """Say how the program ended, in one line if all processes ended in the same way."""
    words = {exit_in_words(item) for item in exits}
    who = "the program" if len(exits) == 1 else f"all {len(exits)} processes"
    if len(words) == 1:
        lines = [f"{who} ended with {words.pop()} after {seconds:.1f} s"]
    else:
        in_order = sorted(exits, key=lambda item: item.ended_at)
        lines = [f"rank {item.rank} ended with {exit_in_words(item)}" for item in in_order]
        lines.append(f"the program ended after {seconds:.1f} s")
    if failure is not None and failure.message.startswith(OUT_OF_MEMORY):
        lines.append(failure.message)
    return lines
