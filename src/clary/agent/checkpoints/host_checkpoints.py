"""The checkpoints of one host as its plan sets them: the folder's location, its restore, its mirror.

LocalPath is either a folder below `/opt/ml` or another folder of the host. In the second case the agent creates it
beside the host's tree and bind-mounts it at LocalPath. Plain processes see the machine's own files, so for them
LocalPath is a path of the machine.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from clary.agent.checkpoints.evidence.observations import ProgramEnd
from clary.agent.checkpoints.evidence.witness import Witness
from clary.agent.checkpoints.folder import CheckpointFolder
from clary.agent.checkpoints.history import Writer
from clary.agent.checkpoints.mirror import Mirror
from clary.agent.checkpoints.outcomes import Flushed, Listeners
from clary.agent.checkpoints.places import prefix_of
from clary.agent.checkpoints.progress import Progress
from clary.agent.checkpoints.publishing import Publisher
from clary.agent.checkpoints.restore_plan import host_order
from clary.agent.checkpoints.restoring import Restored, restore
from clary.agent.checkpoints.step_counts import StepCountSource, leave_restored
from clary.agent.checkpoints.storing import SetWriter
from clary.base.clock import SystemClock
from clary.base.errors import AgentError, Fault
from clary.contract.agent_protocol import CheckpointFacts
from clary.contract.launch_plan import Isolation, LaunchPlan
from clary.contract.ml_tree import OPT_ML, MlTree
from clary.contract.object_store import ObjectStore, parse_s3_uri
from clary.contract.settings.named_places import local_folder, real_folder_problem
from clary.contract.step_counts import FOLDER as STEP_COUNTS_FOLDER

_BOUND_FOLDER = "checkpoints"  # beside the host's tree
_STORE_TIMEOUT_S = 20.0
_STORE_ATTEMPTS = 4  # the retries take 2 to 4 seconds; the next round tries again
_JOIN_S = 5.0
_REST_INTERVALS = 6  # time in intervals for which a file without other evidence must be unchanged to count as whole
_UNITS = ("bytes", "kB", "MB", "GB", "TB")
_UNIT = 1000

logger = logging.getLogger(__name__)


class HostCheckpoints:
    """Restores and mirrors the checkpoint folder of one host.

    Args:
        plan: of the attempt; it names a prefix in S3.
        host: name of the host.
        tree: the host's `/opt/ml` as the agent sees it.
        host_folder: the host's folder on this machine, which contains the tree.
    Raises: AgentError (fault USER) for a LocalPath or S3Uri that cannot be used.
    """

    def __init__(self, plan: LaunchPlan, host: str, *, tree: MlTree, host_folder: Path) -> None:
        assert plan.checkpoint_s3_uri is not None
        names = sorted((item.name for item in plan.hosts), key=host_order)
        self._plan = plan
        self._writer = Writer(
            host=host,
            is_first=host == names[0],
            others=tuple(name for name in names if name != host),
            job_arn=plan.job_arn,
            attempt=plan.attempt,
        )
        self._first = names[0]
        self.prefix = prefix_of(plan.checkpoint_s3_uri)
        self.local_path = _checked_path(plan.checkpoint_local_path)
        self.is_bound = False  # whether the folder must be bind-mounted at `local_path`
        self.folder = self._place(tree, host_folder)
        self._counts_folder = CheckpointFolder(tree.root, STEP_COUNTS_FOLDER)
        self._restored: Restored | None = None
        self._mirror: Mirror | None = None
        self._witness: Witness | None = None
        self._closers: list[threading.Thread] = []

    def restore(self, store: ObjectStore) -> None:
        """Restore the stored checkpoints into the folder. Raises: as `restoring.restore`."""
        self._restored = restore(
            self.folder,
            self.prefix,
            store,
            host=self._writer.host,
            first=self._first,
            others=self._writer.others,
        )
        leave_restored(self._counts_folder, self._restored.step_counts)

    @property
    def summary(self) -> str:
        """The result of the restore, as a line for the log."""
        return self._in_words(self._restored or Restored())

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about sets and files that the restore skipped, and about deviations from the request."""
        found = self._restored.warnings if self._restored is not None else ()
        given = self._plan.checkpoint_s3_uri or ""
        if parse_s3_uri(given) != self.prefix.uri:
            found = (f"checkpoints: S3Uri {given} has empty parts and is taken as {self.prefix.uri}", *found)
        if self._writer.others and not self.is_bound and not self.local_path.is_relative_to(OPT_ML):
            found = (
                f"checkpoints: hosts of this job that run on one machine share {self.local_path}, since nothing keeps "
                "plain processes apart: each of them stores all of it; a LocalPath below /opt/ml is each host's own",
                *found,
            )
        return found

    @property
    def facts(self) -> CheckpointFacts:
        """The facts about checkpoints after the restore."""
        restored = self._restored or Restored()
        last = restored.history.last
        number = last.number if last is not None else 0
        return CheckpointFacts(
            set_number=number,
            num_files=len(last.files) if last is not None else 0,
            size_bytes=last.size_bytes if last is not None else 0,
            restored_set=number,
            restored_files=restored.num_files,
            restored_bytes=restored.size_bytes,
        )

    def watch(self, note: Callable[[str], None]) -> None:
        """Start to watch the folder, before the program starts, so that no write is missed."""
        self._witness = Witness(
            self.folder,
            clock=SystemClock(),
            note=note,
            least_rest_s=_REST_INTERVALS * self._plan.checkpoint_interval_s,
        )
        self._witness.start()

    def start(self, listeners: Listeners, *, first_pid: int | None = None) -> None:
        """Start the mirror.

        Args:
            first_pid: pid of the program's first process on this machine; None: the ends of the program's processes are
                not used as evidence about files.
        """
        assert self._restored is not None, "the restore comes first"
        clock = SystemClock()
        # The mirror has a client of its own, which can be aborted alone and has shorter timeouts.
        store = ObjectStore(self._plan.object_store, timeout_s=_STORE_TIMEOUT_S, attempts=_STORE_ATTEMPTS)
        given_up = threading.Event()

        def break_off() -> None:
            given_up.set()
            # Closing waits for a connection that is being opened, so it runs on another thread.
            closer = threading.Thread(target=store.close, name="checkpoint-store-closing", daemon=True)
            closer.start()
            self._closers.append(closer)

        progress = Progress(self.facts, interval_s=self._plan.checkpoint_interval_s, clock=clock)
        publisher: Publisher | None = None
        writer = SetWriter(
            self.folder,
            self.prefix,
            store,
            writer=self._writer,
            history=self._restored.history,
            clock=clock,
            may_name_plain=lambda file: publisher is not None and publisher.may_name_plain(file),
            is_given_up=given_up.is_set,
            on_progress=progress.moves,
            step_counts=StepCountSource(self._counts_folder, self._restored.history.last),
        )
        publisher = Publisher(self.prefix, store, writer=self._writer, names=writer.names, note=listeners.note)
        if self._witness is None:
            self.watch(listeners.note)
        assert self._witness is not None
        self._witness.follow(first_pid)
        self._mirror = Mirror(
            self.folder,
            writer,
            publisher,
            judge=self._witness,
            progress=progress,
            listeners=listeners,
            break_off=break_off,
            interval_s=self._plan.checkpoint_interval_s,
            clock=clock,
        )
        self._mirror.start()

    @property
    def is_mirroring(self) -> bool:
        """Whether the mirror runs."""
        return self._mirror is not None and not self._mirror.is_aborted

    def look_now(self, limit_s: float) -> None:
        """Record which files are closed now, before the program is signalled; wait for `limit_s` at most."""
        if self._witness is not None and not self._witness.look_now(limit_s):
            logger.warning("the look at the checkpoint folder before a signal took longer than %g s", limit_s)

    def flush(self, limit_s: float, *, has_finished: bool = True) -> Flushed:
        """Store the remaining changes within `limit_s`, and end the mirror.

        Args:
            has_finished: whether the program ended with 0; if not, files that its end left unfinished are skipped.
        """
        end = ProgramEnd.FINISHED if has_finished else ProgramEnd.BROKEN
        return self._mirror.store_last(limit_s, end=end) if self._mirror is not None else Flushed()

    def shorten(self, limit_s: float) -> None:
        """Limit the running flush, or the next one, to `limit_s` from now."""
        if self._mirror is not None:
            self._mirror.shorten(limit_s)

    def abort(self) -> None:
        """Abort the mirror and the flush without waiting."""
        if self._mirror is not None:
            self._mirror.abort()

    def close(self) -> None:
        """End the mirror and the witness within a few seconds."""
        if self._mirror is not None:
            self._mirror.abort()
            if not self._mirror.join(_JOIN_S):
                logger.error("the mirror of checkpoints did not end in time; it ends with the process")
        if self._witness is not None:
            self._witness.close()
        for closer in self._closers:
            closer.join(_JOIN_S)

    def _place(self, tree: MlTree, host_folder: Path) -> CheckpointFolder:
        path = self.local_path
        has_namespaces = self._plan.isolation is Isolation.NAMESPACES
        if path.is_relative_to(OPT_ML):
            below = path.relative_to(OPT_ML).parts
            inside = str(path) if has_namespaces else str(tree.root.joinpath(*below))
            return CheckpointFolder(tree.root, below, inside=inside)
        if has_namespaces:
            self.is_bound = True
            return CheckpointFolder(host_folder / _BOUND_FOLDER, inside=str(path))
        return CheckpointFolder(Path(path))

    def _in_words(self, restored: Restored) -> str:
        if not restored.num_files:
            return f"no checkpoints below {self.prefix.uri}: the program begins without"
        size = _size_in_words(restored.size_bytes)
        files = "1 file" if restored.num_files == 1 else f"{restored.num_files} files"
        line = f"restored {files}, {size}, in {restored.seconds:.2f} s from {self.prefix.uri}"
        if restored.sets:
            line += ": " + ", ".join(f"set {number} of {host}" for host, number in restored.sets)
        last = restored.history.last
        if last is not None:
            line += f", taken at {last.taken_at:%Y-%m-%d %H:%M:%S} UTC"
        first, own = restored.step_counts.first, restored.step_counts.own
        if first is not None and first.total >= 0:
            line += f", at step {first.total} of the debugger"
            line += f" ({own.total} if hosts train each by itself)" if own is not None and own != first else ""
        return line


def _checked_path(local_path: str | None) -> PurePosixPath:
    """Return LocalPath. Raises: AgentError (fault USER) if the path would hide folders that the program needs."""
    text = local_path or str(OPT_ML / "checkpoints")
    problem = real_folder_problem("CheckpointConfig.LocalPath", text)
    if problem is not None:
        raise AgentError(problem, fault=Fault.USER)
    return local_folder(text)


def _size_in_words(size_bytes: int) -> str:
    size, unit = float(size_bytes), 0
    while size >= _UNIT and unit < len(_UNITS) - 1:
        size, unit = size / _UNIT, unit + 1
    return f"{size_bytes} bytes" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"
