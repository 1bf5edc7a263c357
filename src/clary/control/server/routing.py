"""Matches requests with routes: method, path, allowed callers, and the function that answers. Pure.

Where: `route_table` lists the routes, `authorization` checks `Who`, `clary_handler` calls the function.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from clary.contract.box_protocol import BOX_NAME
from clary.control.engines.boxes.desk import BoxDesk
from clary.control.engines.cluster.cluster_engine import ClusterEngine
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile.gateways.agent_gateway import AgentGateway
from clary.control.reconcile.gateways.pool_gateway import PoolGateway
from clary.control.reconcile.gateways.sample_gateway import SampleGateway
from clary.control.reconcile.gateways.training_gateway import TrainingGateway
from clary.control.reconcile.spot_market import SpotMarket
from clary.control.server.actions.rehearsal_actions import RehearsalActions
from clary.control.server.backup_keeping import BackupKeeper
from clary.control.server.edge.internal_http import MAX_VALUES, query_of, read_json
from clary.control.server.edge.sessions import Session
from clary.control.server.edge.sign_in import SignIn
from clary.control.server.pages.checkpoints_page import CheckpointPages
from clary.control.server.pages.downloads_page import DownloadsPage
from clary.control.server.pages.machine_page import MachinePage
from clary.control.server.pages.metrics_page import MetricsPage
from clary.control.server.pages.rehearsals_page import RehearsalPages
from clary.control.server.pages.stragglers_page import StragglerPages
from clary.control.server.pages.tuning_page import TuningPages
from clary.control.services.call import Services
from clary.control.wire.messages import HttpRequest
from clary.control.wire.uri_templates import UriTemplate

ANY = ""  # matches all methods
_FORMS = {  # patterns of values in a path; a path with other values does not match
    "attempt": re.compile(r"[0-9]{1,9}"),
    "pool": re.compile(r"pool_[0-9a-f]{12}"),
    "pool_host": re.compile(r"algo-[0-9]{1,4}"),
    "box": BOX_NAME,
}


class Who(StrEnum):
    """Callers that a route can permit."""

    AGENT = "agent"  # agent of a job's attempt, with the attempt's token
    POOL_AGENT = "pool agent"  # agent of a warm pool, with the pool's token
    PROGRAM = "program"  # program on a host of a job, with its token for status reports
    BOX = "box"  # daemon of a box, with the box's token
    JOINER = "joiner"  # machine that joins as a box, with a join token
    SCRAPER = "scraper"  # reader of metrics, as permitted by setting `metrics_page`
    OWNER = "owner"  # a client with the admin token or a session of the console
    TOKEN = "owner's token"  # noqa: S105 - the admin token, never a session
    ANYBODY = "anybody"  # a change needs the service's own origin; ending a session also needs its CSRF value
    NOBODY = "nobody"  # the route's function refuses every caller before the body is read


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Authorized sender of a request.

    Args:
        name: name of the client in whose share of the body budget the request's body is counted.
        max_body_bytes: maximum size of the request's body.
        is_known: whether the request's head proves the caller's identity.
        job: job of an agent or a program.
        host: host of an agent (of a job or a pool) or of a program.
        session: session of a signed-in browser.
    """

    name: str
    max_body_bytes: int
    is_known: bool = True
    job: TrainingJob | None = None
    host: str = ""
    session: Session | None = None


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Parts of the service that the functions of routes use."""

    services: Services
    agents: AgentGateway
    pools: PoolGateway
    samples: SampleGateway
    training: TrainingGateway
    market: SpotMarket
    backups: BackupKeeper
    machine: MachinePage | None  # None if hosts are other machines
    metrics: MetricsPage
    checkpoints: CheckpointPages
    downloads: DownloadsPage
    stragglers: StragglerPages
    tuning: TuningPages
    cluster: ClusterEngine | None  # None with engine local
    rehearsals: RehearsalPages
    strikes: RehearsalActions
    sign_in: SignIn
    # returns sentences on shared parts; its argument tells whether the job has a network
    shared: Callable[[bool], Sequence[str]]
    engine: str = "local"  # value of the setting `engine`
    boxes: BoxDesk | None = None  # only with engine boxes


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request as the argument of its route's function."""

    request: HttpRequest
    values: Mapping[str, str]  # values in the path
    caller: Caller
    found_job: TrainingJob | None = None
    message: Any = None  # the parsed body, if the route has `reads`

    @property
    def job(self) -> TrainingJob:
        """The job that the path names."""
        assert self.found_job is not None, "only routes of a job ask for it"
        return self.found_job

    @property
    def host(self) -> str:
        """The host of an agent or a program."""
        return self.caller.host

    @property
    def told(self) -> tuple[TrainingJob, str, Any]:
        """Job, host and message of an agent."""
        return self.job, self.host, self.message

    @property
    def query(self) -> dict[str, str]:
        """The decoded query."""
        return query_of(self.request)

    @property
    def body(self) -> Any:
        """The JSON body; raises WireError 400."""
        return read_json(self.request)


Act = Callable[[Parts, Asked], Any]


@dataclass(frozen=True)
class Reads:
    """Type of the message that a route expects as its JSON body; a large body is parsed in a thread."""

    cls: type[Any]
    most_values: int = MAX_VALUES


@dataclass(frozen=True)
class Route:
    """One row of the table.

    Args:
        methods: separated by spaces; `ANY` for all methods.
        path: template, `/jobs/{job}/pages/{rest+}`.
        who: permitted callers.
        act: returns the answer, or a document for a JSON answer, or an awaitable of either; None stands for `{}`.
        reads: type of the message in the body; None leaves the body to `act`.
        hides_secrets: whether a browser gets the document without secrets, because other people may see its screen.
    """

    methods: str
    path: str
    who: Who
    act: Act
    reads: Reads | None = None
    hides_secrets: bool = False

    @cached_property
    def _template(self) -> UriTemplate:
        return UriTemplate.of({"requestUri": self.path})

    def match(self, method: str, raw_path: str) -> dict[str, str] | None:
        """Return the values in a path; None if the path or the method does not match."""
        if self.methods != ANY and method not in self.methods.split():
            return None
        values = self._template.labels_of(raw_path)
        is_fit = values is not None and all(_FORMS[name].fullmatch(values[name]) for name in _FORMS.keys() & values)
        return values if is_fit else None


def match(routes: Sequence[Route], method: str, raw_path: str) -> tuple[Route, dict[str, str]]:
    """Return the first route that matches a request, and the values in its path; the last route matches every request.

    Args:
        routes: in order; the first matching route is used.
        method: HTTP method, in capitals.
        raw_path: percent-encoded, without the query.
    Raises: AssertionError if no route matches.
    """
    for route in routes:
        values = route.match(method, raw_path)
        if values is not None:
            return route, values
    raise AssertionError(f"no route takes {method} {raw_path}")
