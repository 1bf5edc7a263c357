"""A hostile agent: one that holds the token of its own job and sends anything to any path.

What must hold: nothing but documented refusals comes back; no other job's record or lines change; no answer holds
another job's secrets; and whatever a report has put into its own job's record, that job can still be described, stored,
read again and brought to an end.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from clary.contract.agent_protocol import HostPhase, LogBatch, LogBlock
from clary.contract.launch_plan import without_secrets
from clary.control.jobs import deadlines
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile.desks.rehearsal_desk import RehearsalDesk
from clary.control.reconcile.desks.rehearsal_shelf import RehearsalShelf
from clary.control.reconcile.gateways.sample_gateway import SampleGateway
from clary.control.reconcile.gateways.training_gateway import TrainingGateway
from clary.control.server.authorization import Authorizer
from clary.control.server.clary_handler import ClaryHandler
from clary.control.server.edge.access import Access
from clary.control.server.edge.guesses import GuessLimiter
from clary.control.server.edge.sessions import Sessions
from clary.control.server.pages.rehearsals_page import RehearsalPages
from clary.control.server.pages.stragglers_page import StragglerPages
from clary.control.server.routing import Parts
from clary.control.wire.messages import HttpRequest, HttpResponse
from clary.control.wire.models import Protocol, service
from clary.control.wire.serializing import serialize
from clary.testing.control_plane import LIMITS, ControlPlane
from fuzz.agent_messages import MessageMaker
from fuzz.byte_reader import ByteReader
from fuzz.findings import found, require
from fuzz.targets import Run

MAX_REQUESTS = 4
RUNS_BETWEEN_OPENINGS = 2000  # metrics pile up in the store
VICTIM_WORDS = "words-of-the-victim"
_JOB, _VICTIM = "job", "victim"
_NAMES = (_JOB, _JOB, _JOB, _VICTIM, "nobody", "..%2Fvictim", "%6Aob", "job%2F1", "")
_ATTEMPTS = ("1", "1", "1", "2", "0", "01", "-1", "%D9%A1", "9" * 5000)
_HOSTS = ("algo-1", "algo-2", "algo-1", "algo-3", "algo-1%2F", "", "..")
_ACTIONS = ("reports", "logs", "reports", "logs", "orders", "assignment", "x", "")
# No wait here is longer than nothing: time stands still in this target.
_QUERIES = (
    "",
    "after=0",
    "after=-1",
    "after=x",
    "after=" + "9" * 5000,
    "wait_s=nan",
    "wait_s=-5",
    "after=1&wait_s=-inf",
)
_STATUSES = (200, 400, 403, 404, 410)
_SHORTEST_SECRET = 8
_LONGER_THAN_EVERYTHING_S = 4000.0  # longer than the jobs may run
_MEMORY = "/dev/shm"  # a folder of its own is made there: the disk is not what is tried here
_ADMIN_TOKEN = "the-token-of-the-owner"


@contextmanager
def open_target() -> Iterator[Run]:
    """Open a service's inside with two jobs and yield the function that takes an input."""
    with asyncio.Runner() as runner:
        world: _World | None = None

        def run(data: bytes) -> None:
            nonlocal world
            if world is not None and (world.is_spent or world.num_runs >= RUNS_BETWEEN_OPENINGS):
                runner.run(world.close())
                world = None
            if world is None:
                world = runner.run(_World.open())
            runner.run(world.run(ByteReader(data)))

        try:
            yield run
        finally:
            if world is not None:
                runner.run(world.close())


class _World:
    """The service's inside with the hostile agent's job and another one."""

    def __init__(self, folder: tempfile.TemporaryDirectory[str], opened: Any, plane: ControlPlane) -> None:
        self._folder = folder
        self._opened = opened
        self._plane = plane
        self._handler = _own_pages(plane, Path(folder.name))
        self.num_runs = 0
        self.is_spent = False

    @classmethod
    async def open(cls) -> _World:
        folder = tempfile.TemporaryDirectory(prefix="clary-fuzz-", dir=_parent_folder())
        opened = ControlPlane.open(Path(folder.name))
        world = cls(folder, opened, await opened.__aenter__())
        await world._begin()
        return world

    async def close(self) -> None:
        await self._opened.__aexit__(None, None, None)
        self._folder.cleanup()

    async def _begin(self) -> None:
        plane = self._plane
        await plane.create(_VICTIM)
        await plane.passes()
        victim = plane.agent(_VICTIM)
        for phase in (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING):
            await victim.report(phase, notes=(VICTIM_WORDS,))
        await victim.send_logs(LogBatch(first_sequence=0, blocks=(LogBlock(at_ms=1, text=VICTIM_WORDS),)))
        await plane.create(_JOB, num_hosts=2)
        await plane.passes()
        self._job, self._victim = await plane.job(_JOB), await plane.job(_VICTIM)
        self._token = str((self._job.plan or {})["agent_token"])
        self._secrets = (*_secrets_of(self._victim.plan or {}), VICTIM_WORDS)
        require(len(self._secrets) >= 3, "the victim has no secrets to look for", secrets=self._secrets)

    async def run(self, reader: ByteReader) -> None:
        """Send up to four requests, check both jobs afterwards, and put the hostile job back."""
        self.num_runs += 1
        for _ in range(1 + reader.below(MAX_REQUESTS)):
            request = self._request(reader)
            self._check_answer(request, await self._handler.handle(request))
        await self._check_victim()
        job = await self._plane.job(_JOB)
        if job != self._job:
            await self._check_job(job)
            if reader.chance(32):
                await self._end_job()
                return
            await self._plane.hub.update(_JOB, lambda _: self._job)
        for stream in self._job.log_streams:
            if await self._plane.logs.next_sequence(stream):
                await self._plane.logs.delete_streams(stream)
                await self._plane.logs.create_stream(stream, self._job.created_at)
        self._plane.gateway.forget(self._job)

    def _request(self, reader: ByteReader) -> HttpRequest:
        action = reader.choose(_ACTIONS)
        method = "POST" if action in ("reports", "logs") else "GET"
        if reader.chance(16):
            method = reader.choose(("POST", "GET", "PUT"))
        name, attempt, host = reader.choose(_NAMES), reader.choose(_ATTEMPTS), reader.choose(_HOSTS)
        path = f"/clary/v1/agents/{name}/{attempt}/{host}/{action}"
        if reader.chance(16):
            path = reader.choose((f"/clary/v1/jobs/{name}", f"/clary/v1/jobs/{name}/plan", path + "/", "/clary/v1/"))
        path += reader.text() if reader.chance(16) else ""
        headers = [("Authorization", f"Bearer {self._token}")]
        if reader.chance(16):
            headers = [
                ("Authorization", reader.word((f"bearer  {self._token}", "Bearer x", "Bearer \udcff", "Basic a")))
            ]
        body = MessageMaker(reader).body(action) if method == "POST" else b""
        return HttpRequest(method, path, reader.choose(_QUERIES), headers, body)

    def _check_answer(self, request: HttpRequest, answer: HttpResponse) -> None:
        require(answer.status in _STATUSES, "an answer has another status", status=answer.status, request=request)
        document = json.loads(answer.body)
        text = json.dumps(document)
        for secret in self._secrets:
            require(secret not in text, "an answer holds another job's secret", answer=text, request=request)
        is_refusal = answer.status != 200
        require(not is_refusal or bool(document["__type"] and document["message"]), "a refusal is empty", answer=text)
        require(is_refusal or _VICTIM not in request.raw_path, "another job's door is open", request=request)

    async def _check_victim(self) -> None:
        now = await self._plane.job(_VICTIM)
        require(now == self._victim, "another job's record has changed", before=self._victim, after=now)
        require(self._plane.hub.live_job(_VICTIM) == now, "memory and store differ", name=_VICTIM)
        num_lines = await self._plane.logs.next_sequence(self._victim.log_streams[0])
        require(num_lines == 1, "another job's lines have changed", num_lines=num_lines)

    async def _check_job(self, job: TrainingJob) -> None:
        """Do with the record all that the service does with it later."""
        request = HttpRequest("GET", f"/clary/v1/jobs/{_JOB}", "", [("Authorization", f"Bearer {_ADMIN_TOKEN}")])
        answer = await self._handler.handle(request)
        require(answer.status == 200, "the job cannot be shown any more", answer=answer.body)
        described = await self._plane.describe(_JOB)
        serialize(service("sagemaker").operation("DescribeTrainingJob", Protocol.JSON_1_1), described, request_id="R")
        silent_s: Mapping[str, float] = self._plane.gateway.silent_s(job)
        deadlines.due(job, now=self._plane.clock.now(), limits=LIMITS, silent_s=silent_s)

    async def _end_job(self) -> None:
        """Let the reconciler bring the job to its end as if its hosts had vanished."""
        self.is_spent = True
        self._plane.engine.end_all_agents(_JOB)
        for _ in range(MAX_REQUESTS):
            self._plane.clock.advance(_LONGER_THAN_EVERYTHING_S)
            await self._plane.passes()
        if not (await self._plane.job(_JOB)).is_terminal:
            found("the job cannot be brought to an end any more", job=await self._plane.job(_JOB))


def _own_pages(plane: ControlPlane, home: Path) -> ClaryHandler:
    """Return the service's pages; parts that neither agents nor the page of a job need are missing."""
    training = TrainingGateway(plane.hub, plane.store.training, plane.store, plane.clock)
    shelf = RehearsalShelf(plane.store.documents("rehearsals"), home / "rehearsals")
    desk = RehearsalDesk(shelf, plane.hub, plane.clock, home=home, grace_s=1.0)
    faults = SimpleNamespace(refusals=dict, largest_disk_bytes=lambda: 0)
    given = {
        "services": plane.services,
        "agents": plane.gateway,
        "pools": plane.pool_gateway,
        "samples": SampleGateway(plane.store.series, plane.clock),
        "training": training,
        "stragglers": StragglerPages(plane.services),
        "rehearsals": RehearsalPages(plane.services, desk, faults),
        "shared": lambda has_network: (),
    }
    parts: Any = {field.name: given.get(field.name) for field in fields(Parts)}
    sessions = Sessions(b"key", home / "revoked", plane.clock)
    authorizer = Authorizer(
        plane.gateway,
        plane.pool_gateway,
        training,
        Access(sessions, admin_token=_ADMIN_TOKEN),
        metrics_token=_ADMIN_TOKEN,
        metrics_page="token",
        max_body_bytes=1 << 23,
    )
    return ClaryHandler(Parts(**parts), authorizer, GuessLimiter(plane.clock))


def _parent_folder() -> str | None:
    return _MEMORY if os.path.isdir(_MEMORY) else None


def _secrets_of(plan: Mapping[str, Any]) -> Iterator[str]:
    """Yield every text of a plan that `without_secrets` hides."""
    waiting: list[tuple[Any, Any]] = [(plan, without_secrets(plan))]
    while waiting:
        shown, hidden = waiting.pop()
        if isinstance(shown, Mapping):
            waiting.extend((shown[name], hidden[name]) for name in shown)
        elif shown != hidden and len(str(shown)) >= _SHORTEST_SECRET:
            yield str(shown)
