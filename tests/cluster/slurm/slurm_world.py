"""A test's view of a real Slurm: schedulers of ours, stand-ins for boots, jobs of other users.

Where: `slurm_fixtures` makes one per test, on the module's cluster.
"""

import asyncio
import json
import secrets
import time

from clary.base.clock import SystemClock
from clary.control.engines.cluster.scheduler import AllocationOrder, AllocationState, Boot, HostWish
from clary.control.engines.slurm.scheduler import SlurmScheduler
from clary.testing.slurm_bed import NODES

MARK = "0f3a99c2"
LIMIT_S = 25.0
POLL_S = 0.2
AUTHORITY = "-----BEGIN CERTIFICATE-----\nnot one, it's a stand-in\n-----END CERTIFICATE-----\n"

# Stands in for the boot: it writes down what it was given, sleeps, records each SIGTERM and does not end by it.
STAND_IN_FOR_BOOT = """
import json, os, pathlib, signal, socket, subprocess, sys, time
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
name = f"{options['--tag']}-{options['--index']}"
folder = pathlib.Path("@SAID@")
terms = []
signal.signal(signal.SIGTERM, lambda *_: terms.append(time.time()))
text = f"{options['--tag']} {options['--index']}"
proof = subprocess.run(["munge", "--string", text], capture_output=True, text=True, check=True).stdout.strip()
said = {
    "options": options, "node": socket.gethostname(), "pid": os.getpid(), "proof": proof, "file": __file__,
    "ca": pathlib.Path(options["--ca"]).read_text(), "environment": dict(os.environ), "terms": terms,
    "mode": os.stat(os.path.dirname(__file__)).st_mode & 0o777,
}
print("it's the stand-in's \\"own\\" words: $HOME")
while True:
    draft = folder / f"{name}.{os.environ['SLURM_JOB_ID']}.draft"
    draft.write_text(json.dumps(said))
    draft.rename(draft.with_suffix(".json"))
    num_terms = len(terms)
    while len(terms) == num_terms:
        time.sleep(0.05)
"""


class SlurmWorld:
    """A cluster with schedulers of ours, and the records that stand-ins for boots have written."""

    def __init__(self, bed, folder):
        self.bed = bed
        self.folder = folder
        self.said_folder = folder / "said"
        self.said_folder.mkdir()
        self.boot = Boot(
            script=STAND_IN_FOR_BOOT.replace("@SAID@", str(self.said_folder)),
            service_url="https://head:4571",
            ca_pem=AUTHORITY,
        )

    async def scheduler(self, tables=None, *, mark=MARK, state="state"):
        """Start a scheduler and return it; the same `state` gives it the same folder, as after a restart."""
        scheduler = SlurmScheduler(
            tables or {},
            mark=mark,
            folder=self.folder / state,
            clock=SystemClock(),
            environment=self.bed.environment | {"HOME": "/root", "SECRET": "never"},
            node_scratch=str(self.bed.scratch),
        )
        await scheduler.start(self.boot)
        return scheduler

    def new_tag(self):
        """Return a new, random tag of an allocation."""
        return f"pool_{secrets.token_hex(6)}"

    async def until(self, look, wanted, *, limit_s=LIMIT_S):
        """Call `look` until `wanted` holds for its result; return the result."""
        deadline = time.monotonic() + limit_s
        while True:
            found = await look()
            if wanted(found):
                return found
            assert time.monotonic() < deadline, f"after {limit_s} s: {found}\n{self.bed.run('squeue')}"
            await asyncio.sleep(POLL_S)

    async def granted(self, scheduler, tag, num_hosts):
        """Return the allocation of a tag once `num_hosts` hosts live and their stand-ins have written their records."""

        async def look():
            return (await scheduler.allocations()).get(tag)

        def is_there(found):
            alive = [] if found is None else [one for one in found.members.values() if one.is_alive]
            return found is not None and found.state is AllocationState.GRANTED and len(alive) == num_hosts

        found = await self.until(look, is_there)
        for index, member in found.members.items():
            if member.is_alive:
                await self.said(tag, index, node=member.node)
        return found

    async def said(self, tag, index, *, node=None):
        """Return the record of the newest stand-in for a host, on this node."""

        async def look():
            paths = self.said_folder.glob(f"{tag}-{index}.*.json")
            found = [json.loads(path.read_text()) for path in sorted(paths, key=lambda path: path.stat().st_mtime)]
            return [one for one in found if node in (None, one["node"])]

        return (await self.until(look, bool))[-1]

    def hold(self, *nodes, partition="train", user=None):
        """Submit a job that occupies these nodes, without the scheduler; return its number."""
        options = [f"--nodelist={','.join(nodes)}", f"--nodes={len(nodes)}", "--exclusive", f"--partition={partition}"]
        command = ["sbatch", "--parsable", "--output=/dev/null", "--chdir=/", *options, "--time=10"]
        return int(self.bed.run(*command, "--wrap=exec sleep 600", user=user))

    def clear(self):
        """End all jobs; check that their processes are gone."""
        for step in self.bed.run("squeue", "--steps", "--noheader", "--format=%i").split():
            self.bed.run("scancel", "--signal=KILL", step, check=False)
        for number in self.bed.run("squeue", "--noheader", "--format=%A").split():
            self.bed.run("scancel", number, check=False)
        deadline = time.monotonic() + LIMIT_S
        while (queue := self.bed.run("squeue", "--noheader")) or any(map(self.bed.processes, NODES)):
            assert time.monotonic() < deadline, f"left: {queue} {[self.bed.processes(node) for node in NODES]}"
            time.sleep(POLL_S)
        self.bed.wait_for_states(dict.fromkeys(NODES, "idle"))


def order_of(tag, num_hosts, *, kinds=None, num_gpus=0, limit_s=600, grace_s=5.0, is_spot=False, indices=None):
    """Return an order for identical hosts, or for one host of each kind in `kinds`."""
    kinds = kinds or [""] * num_hosts
    hosts = tuple(
        HostWish(index=index, kind=kind, num_cpus=2, memory_bytes=None, num_gpus=num_gpus if "gpu" in kind else 0)
        for index, kind in zip(indices or range(num_hosts), kinds, strict=True)
    )
    return AllocationOrder(tag=tag, job_name="demo-job", hosts=hosts, limit_s=limit_s, grace_s=grace_s, is_spot=is_spot)
