"""How long a program's writes take when each write of its log to disk takes half a second, for `bench_logs`.

    python -m benchmarks.sight.log_slow_disk SECONDS BYTES_PER_S

The agent's own parts run here, in a process of their own: program, pipe, log and shipper, with a fake service. The disk
is made slow by a pause in front of each write to the spool.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.sight.log_programs import __file__ as PROGRAM
from clary.agent.host.program import Program
from clary.agent.host.sandbox import ProcessSpec, Sandbox
from clary.agent.log.host_log import HostLog
from clary.agent.service_client import AgentAddress, ServiceClient
from clary.base.clock import SystemClock
from clary.contract.launch_plan import Isolation, Resources
from clary.testing.fake_service import FakeService
from clary.testing.launch_plans import make_plan

if TYPE_CHECKING:
    from typing_extensions import Buffer

PAUSE_S = 0.5


def main() -> None:
    """Print, as JSON, the program's report on its writes, and whether every line came."""
    seconds, bytes_per_s = sys.argv[1:]
    real_pwrite = os.pwrite

    def slow_pwrite(descriptor: int, data: Buffer, offset: int) -> int:
        time.sleep(PAUSE_S)
        return real_pwrite(descriptor, data, offset)

    os.pwrite = slow_pwrite
    plan = make_plan()
    with tempfile.TemporaryDirectory(prefix="clary-bench-") as name, FakeService(plan) as service:
        folder = Path(name)
        for part in ("host", "ml"):
            (folder / part).mkdir()
        client = ServiceClient(
            AgentAddress(service_url=service.url, job=plan.job_name, attempt=1, host="algo-1"), token=service.token
        )
        notes: list[str] = []
        log = HostLog(
            client, plan=plan, folder=folder / "spool", clock=SystemClock(), on_over=notes.append, on_note=notes.append
        )
        sandbox = Sandbox(
            isolation=Isolation.PROCESSES,
            hostname="algo-1",
            host_folder=str(folder / "host"),
            ml_folder=str(folder / "ml"),
            hosts_file={},
            resources=Resources(num_cpus=1.0, memory_bytes=None),
            cgroup_name=f"clary-bench-{os.getpid()}",
        )
        argv = (sys.executable, str(PROGRAM), "steady", seconds, bytes_per_s)
        spec = ProcessSpec(argv=argv, environment=dict(os.environ), working_folder="/", rank=None, local_rank=0)
        with Program.start([spec], sandbox, on_output=log.on_output) as program:
            result = program.wait(float(seconds) + 60)
        log.end_output()
        log.drain(60.0, give_up=lambda: False)
        texts = service.texts
        client.break_off()
        log.close(10.0)
        client.close()
    if result is None:
        raise SystemExit("the printing program did not end")
    facts = json.loads(next(text for text in texts if text.startswith("END "))[4:])
    numbers = [int(text[:9]) for text in texts if text[:9].isdigit()]
    facts["is_right"] = numbers == list(range(facts["num_lines"])) and not notes
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
