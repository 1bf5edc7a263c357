"""Measurements of one host, from its preparation to its end, and their transfer to the service.

Where: `program_companions` starts it, passes it the program, waits briefly for the last rows before a phase that can
make the job terminal, and closes it. Errors of the measurements do not affect the host, which waits for the last rows
only for that brief time.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from clary.agent.companion import Companion, WatchedProgram
from clary.agent.fact_board import FactBoard
from clary.agent.metrics.connection_source import ConnectionSource
from clary.agent.metrics.gpu_source import GpuSource
from clary.agent.metrics.program_source import ProgramSource
from clary.agent.metrics.row_store import RowStore
from clary.agent.metrics.sampling import Sampling
from clary.agent.metrics.shipper import SampleReceiver, SampleShipper
from clary.agent.metrics.sources import AgentSource, DiskSource, MachineSource, Source, Values
from clary.agent.metrics.step_source import StepSource
from clary.agent.metrics.xid_log import XidLog
from clary.base.clock import Clock
from clary.contract.agent_protocol import GpuError, HostPhase
from clary.contract.launch_plan import Isolation, LaunchPlan
from clary.contract.step_records import FOLDER as STEPS_FOLDER

UPLOAD_ROWS_S = 0.3  # longest wait for rows after an upload, which matter less than those after the program's end
_JOIN_S = 5.0
_NUMBER_OF_PHASE = {phase: float(number) for number, phase in enumerate(HostPhase)}

logger = logging.getLogger(__name__)


class HostMetrics(Companion):
    """Measures one host of one attempt; the supervisor's thread calls the methods.

    Args:
        plan: of the attempt, with the interval; 0: no measurements.
        host: name of this host.
        board: has the phase, which each row contains as `host/phase`: its index in `HostPhase`, 1 for preparing.
        service: receives the rows.
        clock: source of the rows' times.
    """

    def __init__(self, plan: LaunchPlan, *, host: str, board: FactBoard, service: SampleReceiver, clock: Clock) -> None:
        self._plan = plan
        self._host = plan.host(host)
        self._board = board
        self._service = service
        self._clock = clock
        gpus = self._host.resources.gpu_indices
        self._xids = XidLog(gpus, clock=clock) if gpus else None
        self._store = RowStore()
        self._sampling: Sampling | None = None
        self._shipper: SampleShipper | None = None
        self._flushed_by_s = 0.0  # monotonic
        self._end_row = 0

    def start(self) -> None:
        """Start the measurements, unless the interval is 0."""
        interval_s = self._plan.metrics_interval_s
        if interval_s <= 0:
            return
        try:
            folder = Path(self._plan.work_folder) / self._host.name
            # A standby host has its /opt/ml in another folder on the same disk.
            sources: list[Source] = [AgentSource(), MachineSource(), DiskSource((folder / "ml", folder))]
            if self._xids is not None and shutil.which("nvidia-smi") is not None:
                gpus = self._host.resources.gpu_indices
                sources.append(GpuSource(gpus, interval_s=interval_s, xids=self._xids))
            sampling = Sampling(sources, store=self._store, clock=self._clock, interval_s=interval_s, marks=self._marks)
            shipper = SampleShipper(self._service, store=self._store, on_unwanted=sampling.abort)
            sampling.start()
            self._sampling = sampling
            shipper.start()
            self._shipper = shipper
        except Exception:  # error boundary: metrics must not end the program
            logger.exception("%s is not measured", self._host.name)
            self.abort()

    def measure_every(self, interval_s: float) -> None:
        """Change the interval from now on, if measuring; any thread may call this, repeatedly."""
        if self._sampling is not None:
            self._sampling.measure_every(interval_s)

    def begin(self, program: WatchedProgram, ml_folder: Path) -> None:
        """Start to measure the program too, if its first process is known."""
        first_pid, ranks = program.init_pid, program.ranks_by_pid()
        if self._sampling is None or first_pid is None:
            return
        has_own_network = self._plan.isolation is Isolation.NAMESPACES
        self._sampling.add(lambda: ProgramSource(first_pid, ranks=ranks, has_own_network=has_own_network))
        self._sampling.add(lambda: StepSource(ml_folder, STEPS_FOLDER))
        if has_own_network and len(self._plan.hosts) > 1:
            self._sampling.add(lambda: ConnectionSource(first_pid))

    def ended(self) -> None:
        """Stop measuring the program."""
        if self._sampling is not None:
            for kind in (ProgramSource, StepSource, ConnectionSource):
                self._sampling.remove(kind)

    def keep_gpu_errors(self) -> None:
        """After a failure of the program, freeze the GPU errors' times: later errors cannot be the cause."""
        if self._xids is not None:
            self._xids.keep()

    def gpu_errors(self) -> tuple[GpuError, ...]:
        """Return the driver's errors on this host's GPUs so far, even if nothing is measured."""
        if self._xids is None:
            return ()
        self._xids.look()
        return self._xids.errors()

    def flush(self, limit_s: float) -> None:
        """Send the rows so far now; `wait_flushed` waits for this, for `limit_s` from now at most."""
        if self._shipper is not None:
            self._flushed_by_s = time.monotonic() + limit_s
            self._end_row = self._store.end
            self._shipper.flush()

    def wait_flushed(self, is_vain: Callable[[], bool]) -> None:
        """Wait until the rows are sent."""
        if self._shipper is not None:
            self._shipper.wait_sent(self._end_row, self._flushed_by_s - time.monotonic(), is_vain=is_vain)

    def abort(self) -> None:
        """Stop measuring and sending; return at once. A second call does nothing."""
        if self._sampling is not None:
            self._sampling.abort()
        if self._shipper is not None:
            self._shipper.abort()

    def close(self, timeout_s: float = _JOIN_S) -> bool:
        """Wait for the threads to end; return whether they have. This must be the last call."""
        if self._xids is not None:
            self._xids.close()
        deadline_s = time.monotonic() + timeout_s
        has_ended = self._sampling is None or self._sampling.join(timeout_s)
        return (self._shipper is None or self._shipper.join(max(0.0, deadline_s - time.monotonic()))) and has_ended

    def _marks(self) -> Values:
        return {"host/phase": _NUMBER_OF_PHASE[self._board.phase]}
