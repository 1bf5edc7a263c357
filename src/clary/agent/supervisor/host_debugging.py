"""Transfer of a program's saved tensors to the object store and to the rules that read them.

Where: `program_companions` starts the transfer with the program and tells it when the program has ended; `host_life`
lets it finish after results are uploaded, before the host is done. No error here ends the host. Rules delay it for
`FINISH_S` at most, and uploads as long as bytes flow, within the time that is left for results.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from clary.agent.companion import Companion, WatchedProgram
from clary.agent.fact_board import FactBoard
from clary.agent.rules.rule_processes import RuleProcesses
from clary.agent.supervisor.steps import Mirror, Steps
from clary.contract.job_rules import MirrorPlan, RuleFacts, host_end
from clary.contract.launch_plan import LaunchPlan
from clary.contract.statuses import RuleStatus

FINISH_S = 60.0  # limit for rules to read the remaining tensors, and for an upload of the last files that sends nothing
END_OF_JOB = "END_OF_JOB.ts"  # smdebug's name of the end mark, for a job with one host
_JOIN_S = 5.0
_LOOK_S = 0.1  # between two checks whether a wait is still useful

logger = logging.getLogger(__name__)


class HostDebugging(Companion):
    """Mirrors and rules of one host.

    Args:
        plan: of the attempt, with mirrors and rules; the first host runs the rules.
        host: name of this host.
        steps: create mirrors and the environment of rules after the program's start.
        say: writes lines to the job's log.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        *,
        host: str,
        board: FactBoard,
        steps: Steps,
        say: Callable[[str], None],
    ) -> None:
        self._has_rules = bool(plan.rules) and plan.hosts[0].name == host
        self._plan = plan
        # Several hosts share a prefix: one host's mark must not mean that all hosts have ended.
        tries = range(1, plan.attempt + 1)
        marks = [host_end(host, attempt=number, num_hosts=len(plan.hosts)) for number in tries]
        self._end_name = marks[-1] if len(plan.hosts) > 1 else END_OF_JOB
        earlier = marks[:-1] if len(plan.hosts) > 1 else []
        self._earlier_ends = (END_OF_JOB, *earlier) if plan.attempt > 1 else ()
        self._board = board
        self._steps, self._say = steps, say
        self._mirrors: dict[MirrorPlan, Mirror] = {}
        self._rules: RuleProcesses | None = None
        self._is_finished = False

    def begin(self, program: WatchedProgram, ml_folder: Path) -> None:
        """Start the mirrors and rules for a program that has just been started."""
        try:
            if self._plan.mirrors:
                self._mirrors = self._steps.open_mirrors()
                for plan, mirror in self._mirrors.items():
                    if plan.marks_end:
                        for name in {self._end_name, *self._earlier_ends}:  # marks of earlier programs in this folder
                            self._set_end(mirror, name, is_ended=False)
                    if self._earlier_ends and plan.marks_end:
                        mirror.forget(self._earlier_ends)
                    mirror.start()
            if self._has_rules:
                world = self._steps.rule_world()
                self._rules = RuleProcesses(
                    self._plan.rules, world=world, tell=lambda facts: self._board.tell(rules=facts), say=self._say
                )
                self._rules.start()
        except Exception as error:  # error boundary: an observer of a program must not end it
            logger.exception("saved tensors are neither stored nor checked")
            words = f"{type(error).__name__}: {error}"
            self._say(f"saved tensors are neither stored nor checked: {words}")
            if self._has_rules and self._rules is None:
                facts = [RuleFacts(name=rule.name, status=RuleStatus.ERROR, details=words) for rule in self._plan.rules]
                self._board.tell(rules=tuple(facts))

    def ended(self) -> None:
        """Record the program's end: no more tensors are saved, and remaining files are stored at once."""
        for plan, mirror in self._mirrors.items():
            if plan.marks_end:
                self._set_end(mirror, self._end_name, is_ended=True)
            mirror.flush()

    def wait_stored(self, limit_s: float, *, is_vain: Callable[[], bool]) -> None:
        """Wait until saved files are stored.

        Call it if no upload may follow, because `finish` is called only after an upload.
        """
        deadline_s = time.monotonic() + limit_s
        for mirror in self._mirrors.values():
            while time.monotonic() < deadline_s and not is_vain() and not mirror.wait_stored(_LOOK_S):
                pass

    def finish(self, limit_s: float = FINISH_S, *, upload_s: float = 0.0) -> tuple[str, ...]:
        """Wait until rules have read all tensors and all files are stored; return sentences on missing files.

        A host that becomes leader after it has staged its share uploads twice; only the first call waits.

        Args:
            limit_s: for rules, and for uploads that send nothing.
            upload_s: for rules and uploads together, as long as uploads send anything.
        """
        if self._is_finished:
            return ()
        self._is_finished = True
        try:
            return self._finish(limit_s, upload_s)
        except Exception as error:  # error boundary: other hosts wait for this host, even without its tensors
            logger.exception("saved tensors are not finished")
            return (f"saved tensors: the wait for their storage failed: {type(error).__name__}: {error}",)

    def _finish(self, limit_s: float, upload_s: float) -> tuple[str, ...]:
        began_s = time.monotonic()
        if self._rules is not None:
            self._rules.finish(limit_s)
        notes = []
        for plan, mirror in self._mirrors.items():
            took_s = time.monotonic() - began_s
            if not mirror.finish(max(1.0, limit_s - took_s), longest_s=upload_s - took_s):
                notes.append(f"{plan.what}: not everything was stored at {plan.s3_uri}: {mirror.error}")
            elif mirror.num_stored:
                files = "1 file is" if mirror.num_stored == 1 else f"{mirror.num_stored} files are"
                self._say(f"{plan.what}: {files} at {plan.s3_uri}")
        return tuple(notes)

    def abort(self) -> None:
        """Abort mirrors and rules; a second call does nothing."""
        if self._rules is not None:
            self._rules.abort()
        for mirror in self._mirrors.values():
            mirror.abort()

    def close(self, timeout_s: float = _JOIN_S) -> bool:
        """Wait for threads and processes to end; return whether they have."""
        deadline_s = time.monotonic() + timeout_s
        has_ended = self._rules is None or self._rules.join(timeout_s)
        for mirror in self._mirrors.values():
            has_ended = mirror.join(max(0.0, deadline_s - time.monotonic())) and has_ended
        return has_ended

    def _set_end(self, mirror: Mirror, path: str, *, is_ended: bool) -> None:
        """Write or remove the file that marks a trial's end. It is written only if the program has not written it."""
        try:
            with mirror.opened() as folder:
                if not is_ended:
                    folder.remove(path)
                elif not folder.exists(path):
                    folder.folder(path.rpartition("/")[0], create=True).close()
                    folder.write(path, b"")
        except FileNotFoundError:
            pass
        except OSError as error:
            logger.warning("the end of the training cannot be marked: %s", error)
