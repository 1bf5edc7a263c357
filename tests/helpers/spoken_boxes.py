"""Boxes played by a test: their facts, their reports, and a scheduler that receives them."""

import hashlib

from clary.contract.box_protocol import BoxFacts, BoxReport, LeasePhase, LeaseReport
from clary.control.engines.boxes.desk import NewBox
from clary.control.engines.boxes.scheduler import BoxesScheduler
from clary.control.engines.cluster.scheduler import AllocationOrder, Boot, HostWish

GIB = 1024**3
TAG = "pool_0123456789ab"
BOOT = Boot(script="print('boot')", service_url="https://head:4571", ca_pem="a certificate")
DAEMON = "d" * 64


def facts(name, **changes):
    given = {"hostname": name, "user": "ml", "num_cpus": 8, "memory_bytes": 62 * GIB, "isolation": "namespaces"}
    return BoxFacts(**given | changes)


def new_box(name, **changes):
    machine = hashlib.sha256(changes.get("hostname", name).encode()).hexdigest()
    return NewBox(name=name, machine=machine, facts=facts(name, **changes))


def wish(index, kind="", num_cpus=1, memory_bytes=None, num_gpus=0):
    return HostWish(index=index, kind=kind, num_cpus=num_cpus, memory_bytes=memory_bytes, num_gpus=num_gpus)


def order(num_hosts, tag=TAG, job="job-7", **changes):
    hosts = tuple(wish(index, **changes) for index in range(num_hosts))
    return AllocationOrder(tag=tag, job_name=job, hosts=hosts, limit_s=3600, grace_s=30.0)


class SpokenBox:
    """One box; it keeps its orders, and sends the reports that the test chooses."""

    def __init__(self, scheduler, name, **changes):
        self.scheduler, self.name, self.facts = scheduler, name, facts(name, **changes)
        self.token, self.leases, self.number, self.run, self.proofs = "", {}, 0, "first", {}

    def report(self, *, wait_s=0.0, after=-1):
        self.number += 1
        return BoxReport(
            run=self.run,
            number=self.number,
            boot_id="boot",
            daemon=DAEMON,
            facts=self.facts,
            leases=tuple(self.leases.values()),
            after=after,
            wait_s=wait_s,
        )

    async def ask(self, **options):
        return await self.scheduler.desk.orders(self.name, self.report(**options), "10.0.0.9")

    async def obey(self):
        """Carry out orders as the daemon does, until they require no further step; return the last orders."""
        for _ in range(6):
            orders = await self.ask()
            before = dict(self.leases)
            self.leases = {one.lease: self._after(one) for one in orders.leases}
            if self.leases == before:
                return orders
        raise AssertionError(f"{self.name} never comes to rest: {orders}")

    def _after(self, one):
        known = self.leases.get(one.lease)
        if one.wish == "end" or (known is not None and known.phase is LeasePhase.GONE):
            return LeaseReport(lease=one.lease, phase=LeasePhase.GONE, why=known.why if known else "")
        if known is None:
            proof = self.proofs[one.tag, one.index] = f"proof of {one.lease}"
            digest = hashlib.sha256(proof.encode()).hexdigest()
            return LeaseReport(lease=one.lease, phase=LeasePhase.RECORDED, proof_digest=digest)
        if known.phase is LeasePhase.RECORDED and one.may_start:
            return LeaseReport(lease=one.lease, phase=LeasePhase.RUNNING, pid=7, proof_digest=known.proof_digest)
        return known

    def end(self, why="exit code 1"):
        """Mark every lease on the box as ended by itself."""
        self.leases = {name: LeaseReport(lease=name, phase=LeasePhase.GONE, why=why) for name in self.leases}


class SpokenBoxes:
    """A scheduler on a folder, and the boxes added to it."""

    def __init__(self, folder, clock):
        self.folder, self.clock, self.boxes = folder, clock, {}

    async def open(self):
        """Start a service on the stored records, without the memory of the previous service."""
        self.scheduler = BoxesScheduler(self.folder, self.clock, end_wait_s=0.0)
        await self.scheduler.start(BOOT)
        for box in self.boxes.values():
            box.scheduler = self.scheduler
        return self

    async def add(self, *names, **changes):
        for name in names:
            box = self.boxes[name] = SpokenBox(self.scheduler, name, **changes)
            box.token = (await self.scheduler.desk.add(new_box(name, **changes))).token
            await box.ask()

    async def obey(self, *names):
        for name in names or self.boxes:
            await self.boxes[name].obey()

    async def told(self, tag=TAG):
        return (await self.scheduler.allocations()).get(tag)

    def state(self, name):
        return next(row for row in self.scheduler.desk.page()["boxes"] if row["name"] == name)
