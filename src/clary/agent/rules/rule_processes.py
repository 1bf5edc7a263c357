"""The rules of a job, as processes that run concurrently with its program.

Where: the supervisor of the first host starts them with the program, in a separate host with the same `/opt/ml`,
environment and network. The rules may outlive the program, and cannot end it.
Each rule is `python -m clary.train.debugger.evaluation` with an order file, and writes its status to a file:

    RULES_FOLDER/0/order.json, source/rule.py, other_0/..., status.json

The program does not see that folder; otherwise it could create links in it, and the agent writes with more rights than
the program has.
"""

from __future__ import annotations

import json
import logging
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Protocol

from clary.agent.host.sandbox import ProcessSpec
from clary.agent.worker import Worker
from clary.base.errors import AgentError, ClaryError
from clary.contract.agent_protocol import ProcessExit
from clary.contract.job_rules import MAX_DETAILS_CHARACTERS, RuleFacts, RulePlan
from clary.contract.object_store import ObjectStore, parse_s3_uri
from clary.contract.statuses import RuleStatus

MODULE = "clary.train.debugger.evaluation"
# path in the rules' view; without isolation, rules use the folder's path on this machine
RULES_FOLDER = "/opt/clary/rules"
POLL_S = 0.25
MAX_SOURCE_BYTES = 4 * 1024 * 1024
MAX_OTHER_FILES = 100_000  # limit for the files of another trial, which are all downloaded
MAX_OTHER_BYTES = 8 * 1024**3
_MAX_STATUS_BYTES = 16 * 1024
_KEPT_LINES = 20
_KEPT_BYTES = 8 * 1024  # kept lines are cut to this length, because output may have no line breaks

logger = logging.getLogger(__name__)


class RuleHost(Protocol):
    """A host that runs the processes, such as `rules.rule_world.RulesHost`."""

    def exits(self) -> tuple[ProcessExit, ...]:
        """Return the exits so far; `local_rank` is the index of the process."""

    def out_of_memory(self) -> str:
        """Return a sentence if the memory limit has ended processes, else ""."""

    def close(self) -> None:
        """End the remaining processes and clean up."""


@dataclass(frozen=True, kw_only=True)
class RuleWorld:
    """The environment in which rules run.

    Attributes:
        folder: folder of the rules on this machine; `inside` is its path in the rules' view.
        read: returns the first bytes of a file below `folder` without following links; None if it does not exist.
        environment: complete environment of each process.
        tensors_uri: prefix at which several hosts store their tensors; empty for a single host, or if rules cannot read
            it.
        is_marked: whether the agent writes a mark at `tensors_uri` when the program has ended.
        own_end: file in `tensors_folder` that marks the end of this host's program; empty for a job with one host.
        since: seconds since 1970; objects stored at `tensors_uri` before this time are of an earlier attempt.
        start: starts processes. Raises: AgentError.
    """

    folder: Path
    inside: PurePosixPath
    read: Callable[[Sequence[str], int], bytes | None]
    python: str
    environment: Mapping[str, str]
    working_folder: str
    tensors_folder: str
    open_store: Callable[[], ObjectStore]
    start: Callable[[Sequence[ProcessSpec], Callable[[int, bytes], None]], RuleHost]
    tensors_uri: str = ""
    is_marked: bool = False
    own_end: str = ""
    since: float = 0.0


class RuleProcesses(Worker):
    """Runs the rules of a job; `finish` waits until each rule has read all saved tensors.

    Args:
        rules: at least one rule.
        world: the environment of the rules.
        tell: called with all facts whenever a fact changes.
        say: writes lines to the job's log.
    """

    def __init__(
        self,
        rules: Sequence[RulePlan],
        *,
        world: RuleWorld,
        tell: Callable[[tuple[RuleFacts, ...]], None],
        say: Callable[[str], None],
    ) -> None:
        super().__init__("rules", failure="rules cannot be evaluated")
        self._rules = tuple(rules)
        self._world = world
        self._tell = tell
        self._say = say
        self._facts = [RuleFacts(name=rule.name, status=RuleStatus.IN_PROGRESS) for rule in self._rules]
        self._told: tuple[RuleFacts, ...] = ()
        self._last_lines: list[deque[bytes]] = [deque(maxlen=_KEPT_LINES) for _ in self._rules]
        self._started: tuple[int, ...] = ()  # index of a process -> index of its rule
        self._running: dict[int, int] = {}  # index of the process -> index of the rule
        self._host: RuleHost | None = None
        self._has_launched = False

    @property
    def facts(self) -> tuple[RuleFacts, ...]:
        """Facts of each rule, in the order of the rules."""
        return tuple(self._facts)

    def finish(self, limit_s: float) -> bool:
        """Wait at most `limit_s` until each rule has read all saved tensors; stop the rules that have not finished."""
        return super().finish(limit_s) or self.join(2 * POLL_S)

    def _round(self) -> float | None:
        try:
            if self._has_launched:
                self._look()
            else:
                self._has_launched = True
                self._publish()
                self._launch(self._orders())
        except ClaryError as error:
            self._blame(error.message)
            return None
        return POLL_S if self._running else None

    def _on_failure(self, error: Exception) -> None:
        self._blame(f"{type(error).__name__}: {error}")

    def _on_end(self) -> None:
        try:
            if self.is_aborted and self._running:
                self._look()
            why = "it was stopped before it had read everything that was saved"
            for index in self._running.values():
                if self._facts[index].status is RuleStatus.IN_PROGRESS:
                    self._facts[index] = replace(self._facts[index], status=RuleStatus.STOPPED, details=why)
        finally:
            if self._host is not None:
                self._host.close()
            self._publish()

    def _orders(self) -> dict[int, PurePosixPath]:
        """Write the order of each rule; return rule -> path of its order in the rules' view."""
        orders = {}
        store: ObjectStore | None = None
        try:
            for index, rule in enumerate(self._rules):
                place, inside = self._world.folder / str(index), self._world.inside / str(index)
                place.mkdir(parents=True, exist_ok=True)
                source_file, others = "", []
                try:
                    if rule.source_uri or rule.other_trials:
                        store = store or self._world.open_store()
                    if rule.source_uri and store is not None:
                        source_file = str(inside / fetch_source(rule.source_uri, place, store=store))
                    for number, uri in enumerate(rule.other_trials):
                        assert store is not None
                        fetch_trial(uri, place / f"other_{number}", store=store)
                        others.append(str(inside / f"other_{number}"))
                except (ClaryError, OSError) as error:
                    self._end_rule(index, RuleStatus.ERROR, f"what the rule needs could not be fetched: {error}")
                    continue
                order = {
                    "name": rule.name,
                    "rule": rule.rule,
                    "source_file": source_file,
                    "parameters": dict(rule.parameters),
                    "tensors_folder": self._world.tensors_folder,
                    "tensors_uri": self._world.tensors_uri,
                    "is_marked": self._world.is_marked,
                    "own_end": self._world.own_end,
                    "since": self._world.since,
                    "other_trials": others,
                    "status_file": str(inside / "status.json"),
                }
                (place / "status.json").unlink(missing_ok=True)
                (place / "order.json").write_text(json.dumps(order), encoding="utf-8")
                orders[index] = inside / "order.json"
        finally:
            if store is not None:
                store.close()
        return orders

    def _launch(self, orders: Mapping[int, PurePosixPath]) -> None:
        self._started, self._running = tuple(orders), dict(enumerate(orders))
        if not orders or self.is_aborted:
            return
        processes = [
            ProcessSpec(
                argv=(self._world.python, "-m", MODULE, str(path)),
                environment=self._world.environment,
                working_folder=self._world.working_folder,
                rank=None,
                local_rank=number,
            )
            for number, path in enumerate(orders.values())
        ]
        self._host = self._world.start(processes, self._take_output)
        names = ", ".join(self._rules[index].name for index in orders)
        self._say(f"rules over saved tensors: {names}")

    def _take_output(self, process: int, data: bytes) -> None:
        lines = self._last_lines[self._started[process]]
        lines.extend(line[:_KEPT_BYTES] for line in data.splitlines() if line.strip())

    def _look(self) -> None:
        """Read the statuses and exits of the rules."""
        if self._host is None:
            return
        exits = {item.local_rank: item for item in self._host.exits()}
        for process, index in list(self._running.items()):
            ended = exits.get(process)  # read before the status, which is final once the process has ended
            status, details = self._status(index)
            if status in (RuleStatus.ISSUES_FOUND, RuleStatus.NO_ISSUES_FOUND, RuleStatus.ERROR):
                del self._running[process]
                self._end_rule(index, status, details)
            elif ended is not None:
                del self._running[process]
                self._end_rule(index, RuleStatus.ERROR, self._why_ended(index, ended))
        self._publish()

    def _why_ended(self, index: int, ended: ProcessExit) -> str:
        """Return the reason why a rule's process ended without a status."""
        assert self._host is not None
        starved = self._host.out_of_memory() if ended.signal == signal.SIGKILL else ""
        if starved:
            return starved
        how = f"exit code {ended.exit_code}" if ended.signal is None else f"signal {ended.signal}"
        last = self._last_lines[index][-1].decode("utf-8", "replace") if self._last_lines[index] else ""
        return f"its process ended with {how}" + (f": {last}" if last else "")

    def _status(self, index: int) -> tuple[RuleStatus | None, str]:
        data = self._world.read((str(index), "status.json"), _MAX_STATUS_BYTES)
        try:
            document = json.loads(data or b"")
            return RuleStatus(document["status"]), str(document["details"])[:MAX_DETAILS_CHARACTERS]
        except (ValueError, KeyError, TypeError):
            return None, ""

    def _end_rule(self, index: int, status: RuleStatus, details: str) -> None:
        details = details[:MAX_DETAILS_CHARACTERS]
        self._facts[index] = replace(self._facts[index], status=status, details=details)
        self._say(f"rule {self._rules[index].name}: {status.value}: {details}")

    def _blame(self, message: str) -> None:
        for index, facts in enumerate(self._facts):
            if facts.status is RuleStatus.IN_PROGRESS:
                self._facts[index] = replace(facts, status=RuleStatus.ERROR, details=message[:MAX_DETAILS_CHARACTERS])
                self._say(f"rule {facts.name} cannot be evaluated: {message}")

    def _publish(self) -> None:
        if self.facts != self._told:
            self._told = self.facts
            self._tell(self._told)


def fetch_source(uri: str, place: Path, *, store: ObjectStore) -> str:
    """Download a user's rule; return its path below `place`. Raises: ClaryError, OSError.

    Args:
        uri: of a file in S3 that ends in .py and has at most `MAX_SOURCE_BYTES`.
        place: an existing folder.
        store: has the file.
    """
    source = parse_s3_uri(uri)
    name = PurePosixPath(source.key).name
    if not name.endswith(".py"):
        raise AgentError(f"{uri} is not a Python file: source_s3_uri must name a file that ends in .py")
    (place / "source").mkdir(exist_ok=True)
    content = store.get_bytes(source.bucket, source.key, max_bytes=MAX_SOURCE_BYTES)
    (place / "source" / name).write_bytes(content)
    return f"source/{name}"


def fetch_trial(uri: str, place: Path, *, store: ObjectStore) -> None:
    """Download the tensors of another training and mark it as ended. Raises: ClaryError, OSError.

    Args:
        uri: prefix in S3 with at most `MAX_OTHER_FILES` files and `MAX_OTHER_BYTES`.
        place: folder to create or fill; after an error it is incomplete.
        store: has the tensors.
    """
    source = parse_s3_uri(uri)
    prefix = f"{source.key.rstrip('/')}/" if source.key else ""
    num_files = num_bytes = 0
    for info in store.list_objects(source.bucket, prefix):
        relative = PurePosixPath(info.key.removeprefix(prefix))
        if not relative.parts or ".." in relative.parts or relative.is_absolute() or info.key.endswith("/"):
            continue
        num_files, num_bytes = num_files + 1, num_bytes + info.size_bytes
        if num_files > MAX_OTHER_FILES or num_bytes > MAX_OTHER_BYTES:
            raise AgentError(
                f"{uri} has more than {MAX_OTHER_FILES} files or {MAX_OTHER_BYTES} bytes, the limits for "
                "tensors to compare with"
            )
        path = place.joinpath(*relative.parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        store.download(source.bucket, info.key, path, size_bytes=info.size_bytes, etag=info.etag)
    if not num_files:
        raise AgentError(f"there are no tensors at {uri}")
    (place / "END_OF_JOB.ts").touch()  # mark by which the rule sees that the program has ended
