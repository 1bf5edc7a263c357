"""The table of the service's own routes: method, path, allowed callers, and the function that answers.

Where: `clary_handler` uses the first row that a request matches, and `authorization` checks the caller before the
function is called. The listener itself answers the health check and the console's files, which need no authorization;
it recognizes S3 and the other AWS services by their signatures (`edge.matching`).

Rows of pages match any method, so the row of a request that changes something stands before the row of the page with
the same path.
"""

from __future__ import annotations

from typing import Any

from clary.base.errors import WireError
from clary.contract.agent_protocol import LogBatch, Report
from clary.contract.box_protocol import BoxReport
from clary.contract.deep_profiles import HostProfile
from clary.contract.metric_samples import SampleBatch
from clary.contract.stack_dumps import HostDump
from clary.contract.training_values import TrainingBatch
from clary.control.jobs.job_state import job_state_row
from clary.control.server import box_routes
from clary.control.server.actions.rerun_action import rerun
from clary.control.server.actions.spot_actions import reclaim, set_capacity, spot_page
from clary.control.server.agent_routes import MAX_NUMBERS, next_assignment, next_order, take_status, take_trace
from clary.control.server.allocation_routes import bundle, enrol, why_late
from clary.control.server.pages.capacity_page import capacity_page
from clary.control.server.pages.compare_page import compare_page
from clary.control.server.pages.dump_page import ask_for_dump, dump_page
from clary.control.server.pages.facts_page import facts_page, plan_page
from clary.control.server.pages.health_page import health_page
from clary.control.server.pages.hosts_page import hosts_page
from clary.control.server.pages.jobs_page import jobs_page
from clary.control.server.pages.log_lines_page import log_lines_page
from clary.control.server.pages.logs_page import logs_page
from clary.control.server.pages.metric_values_page import metric_values_page
from clary.control.server.pages.profile_page import ask_for_profile, profile_page
from clary.control.server.pages.profiler_report_page import profiler_report_page
from clary.control.server.pages.series_page import series_page
from clary.control.server.pages.state_page import change_quarantine, make_backup, quarantine_page, state_page
from clary.control.server.pages.training_page import tensorboard_page, training_page
from clary.control.server.pages.why_page import why_page
from clary.control.server.routing import ANY, Act, Asked, Parts, Reads, Route, Who
from clary.control.services.job_acts import stop_job

AGENT, POOL_AGENT, PROGRAM, SCRAPER = Who.AGENT, Who.POOL_AGENT, Who.PROGRAM, Who.SCRAPER
OWNER, TOKEN, ANYBODY, NOBODY = Who.OWNER, Who.TOKEN, Who.ANYBODY, Who.NOBODY
BOX, JOINER = Who.BOX, Who.JOINER
_V1 = "/clary/v1"
_HOST = _V1 + "/agents/{job}/{attempt}/{host}"
_POOL = _V1 + "/pools/{pool}/{pool_host}/assignment"
_STATUS = _V1 + "/status/{job}/{attempt}/{host}"
_ALLOCATION = _V1 + "/allocations/{pool}/{index}"
_JOB = _V1 + "/jobs/{job}"
_BOX = _V1 + "/boxes/{box}"
_TUNING = _V1 + "/tuning/{name}"
_PAGES = (
    "state, plan, request, why, logs, log-lines, series, training, tensorboard, metric-values, stragglers, "
    "health, dump, profile, profiler-report, checkpoints, downloads and rehearsals; stop, rerun, strike and "
    "reclaim by POST"
)


def _absent(words: str, *, code: str = "NotFound", status: int = 404) -> Act:
    """Return a function that raises a refusal; the text may contain `method`, `path`, and values of the path."""

    def refuse(own: Parts, ask: Asked) -> None:
        told = words.format(method=ask.request.method[:20], path=ask.request.raw_path, **ask.values)
        raise WireError(code, told, http_status=status)

    return refuse


def _wrong_method(words: str) -> Act:
    return _absent(words, code="MethodNotAllowed", status=405)


def _place(ask: Asked) -> tuple[str, str]:
    return ask.values["pool"], ask.values["index"]


def _facts(own: Parts, ask: Asked) -> object:
    return facts_page(own.services, ask.job, stragglers=own.stragglers, rehearsals=own.rehearsals, shared=own.shared)


async def _stop(own: Parts, ask: Asked) -> dict[str, Any]:
    changed = await stop_job(own.services, ask.job)
    if changed is None:
        raise WireError("ValidationException", f"{ask.job.name} is over: it is {ask.job.status.value}")
    status = {"status": changed.status.value, "secondary_status": changed.secondary_status.value}
    return {"name": changed.name, **status, "grace_s": own.services.settings.stop_grace_s}


ROUTES: tuple[Route, ...] = (
    # Agents of a job's attempt (contract/agent_protocol.py)
    Route("GET", _HOST + "/assignment", AGENT, lambda own, ask: own.agents.assignment(ask.job)),
    Route("GET", _HOST + "/orders", AGENT, lambda own, ask: next_order(own.agents, ask.job, ask.host, ask.query)),
    Route("POST", _HOST + "/reports", AGENT, lambda own, ask: own.agents.report(*ask.told), Reads(Report)),
    Route("POST", _HOST + "/logs", AGENT, lambda own, ask: own.agents.append_logs(*ask.told), Reads(LogBatch)),
    Route(
        "POST",
        _HOST + "/samples",
        AGENT,
        lambda own, ask: own.samples.append(*ask.told),
        Reads(SampleBatch, MAX_NUMBERS),
    ),
    Route(
        "POST",
        _HOST + "/training",
        AGENT,
        lambda own, ask: own.training.append(*ask.told),
        Reads(TrainingBatch, MAX_NUMBERS),
    ),
    Route("POST", _HOST + "/dumps", AGENT, lambda own, ask: own.agents.take_dump(*ask.told), Reads(HostDump)),
    Route("POST", _HOST + "/profiles", AGENT, lambda own, ask: own.agents.take_profile(*ask.told), Reads(HostProfile)),
    Route("POST", _HOST + "/traces", AGENT, lambda own, ask: take_trace(own.agents, ask.job, ask.host, ask.request)),
    Route(ANY, _HOST + "/{action}", AGENT, _absent("no such agent request: {method} {action}")),
    Route(ANY, _V1 + "/agents{rest+}", NOBODY, _absent("no such agent path: {path}")),
    # Agents of a warm pool, and a host's program that reports its progress
    Route(
        ANY, _POOL, POOL_AGENT, lambda own, ask: next_assignment(own.pools, ask.values["pool"], ask.host, ask.request)
    ),
    Route(ANY, _V1 + "/pools{rest+}", NOBODY, _absent("no such path of a pool: {path}")),
    Route("POST PUT", _STATUS, PROGRAM, lambda own, ask: take_status(own.training, ask.job, ask.host, ask.request)),
    Route(ANY, _V1 + "/status{rest+}", NOBODY, _absent("no such status: {method} {path}")),
    # Daemons of boxes (contract/box_protocol.py), and machines that become boxes
    Route("POST", _BOX + "/leases", BOX, box_routes.next_orders, Reads(BoxReport)),
    Route("GET", _BOX + "/boot/{digest}", BOX, box_routes.boot_source),
    Route("POST", _V1 + "/join", JOINER, box_routes.join),
    Route("GET", _V1 + "/authority", ANYBODY, box_routes.authority),
    # Boxes, for their owner
    Route("GET HEAD", _V1 + "/boxes", OWNER, box_routes.boxes_page),
    Route("POST", _V1 + "/boxes", OWNER, box_routes.add_box),
    Route("POST", _BOX + "/drain", OWNER, box_routes.drain),
    Route("POST", _BOX + "/resume", OWNER, box_routes.resume),
    Route("POST", _BOX + "/remove", OWNER, box_routes.remove),
    Route("POST", _V1 + "/join-tokens", OWNER, box_routes.join_token),
    # Hosts that boot on other machines, and the files that they fetch (contract/enrolment.py)
    Route("POST", _ALLOCATION, ANYBODY, lambda own, ask: enrol(own.cluster, *_place(ask), ask.request)),
    Route(ANY, _V1 + "/allocations{rest+}", NOBODY, _absent("no such allocation: {method} {path}")),
    Route("GET", _V1 + "/agent/{digest}", ANYBODY, lambda own, ask: bundle(own.cluster, ask.values["digest"])),
    Route(ANY, _V1 + "/agent{rest+}", NOBODY, _absent("no such bundle: {method} {path}")),
    # Prometheus
    Route("GET", "/metrics", SCRAPER, lambda own, ask: own.metrics.page()),
    # Sign-in to the console, and sign-out
    Route("POST", _V1 + "/session", ANYBODY, lambda own, ask: own.sign_in.begin(ask.request)),
    Route("DELETE", _V1 + "/session", ANYBODY, lambda own, ask: own.sign_in.end(ask.request, ask.caller.session)),
    Route("GET HEAD", _V1 + "/session", ANYBODY, lambda own, ask: own.sign_in.facts(ask.caller.session)),
    Route(ANY, _V1 + "/session", ANYBODY, _wrong_method("a session has no {method}")),
    Route("POST", _V1 + "/session-code", TOKEN, lambda own, ask: own.sign_in.new_code()),
    Route(ANY, _V1 + "/session-code", ANYBODY, _wrong_method("a code is asked for by POST")),
    # Nodes that serve as hosts
    Route(ANY, _V1 + "/capacity", OWNER, lambda own, ask: capacity_page(own.cluster, own.machine)),
    # A job: actions
    Route("POST", _JOB + "/dump", OWNER, lambda own, ask: ask_for_dump(own.services, ask.job)),
    Route("POST", _JOB + "/profile", OWNER, lambda own, ask: ask_for_profile(own.services, ask.job, ask.body)),
    Route("POST", _JOB + "/reclaim", OWNER, lambda own, ask: reclaim(own.services, ask.job, ask.body)),
    Route("POST", _JOB + "/rehearsals", OWNER, lambda own, ask: own.rehearsals.act(ask.job, ask.body)),
    Route("POST", _JOB + "/rerun", OWNER, lambda own, ask: rerun(own.services, ask.job, ask.body)),
    Route("POST", _JOB + "/stop", OWNER, _stop),
    Route("POST", _JOB + "/strike", OWNER, lambda own, ask: own.strikes.strike(ask.job, ask.body)),
    # A job: pages
    Route(ANY, _JOB, OWNER, _facts),
    Route(ANY, _JOB + "/", OWNER, _facts),
    Route(ANY, _JOB + "/checkpoints", OWNER, lambda own, ask: own.checkpoints.page(ask.job, ask.query)),
    Route(ANY, _JOB + "/downloads", OWNER, lambda own, ask: own.downloads.page(ask.job, ask.request)),
    Route(ANY, _JOB + "/dump", OWNER, lambda own, ask: dump_page(own.services, ask.job, ask.query), hides_secrets=True),
    Route(ANY, _JOB + "/health", OWNER, lambda own, ask: health_page(ask.job)),
    Route(ANY, _JOB + "/log-lines", OWNER, lambda own, ask: log_lines_page(own.services, ask.job, ask.query)),
    Route(ANY, _JOB + "/logs", OWNER, lambda own, ask: logs_page(own.services, ask.job, ask.query)),
    Route(
        ANY,
        _JOB + "/metric-values",
        OWNER,
        lambda own, ask: metric_values_page(own.services, ask.job, ask.request.query),
    ),
    Route(ANY, _JOB + "/plan", OWNER, lambda own, ask: plan_page(own.services, ask.job), hides_secrets=True),
    Route(ANY, _JOB + "/profile", OWNER, lambda own, ask: profile_page(own.services, ask.job, ask.query)),
    Route(
        ANY, _JOB + "/profiler-report", OWNER, lambda own, ask: profiler_report_page(own.services, ask.job, ask.query)
    ),
    Route(ANY, _JOB + "/records", OWNER, lambda own, ask: own.strikes.records(ask.job, ask.query)),
    Route(ANY, _JOB + "/rehearsals", OWNER, lambda own, ask: own.rehearsals.page(ask.job, ask.query)),
    Route(ANY, _JOB + "/request", OWNER, lambda own, ask: {"request": dict(ask.job.request)}, hides_secrets=True),
    Route(ANY, _JOB + "/series", OWNER, lambda own, ask: series_page(own.services, ask.job, ask.query)),
    Route(ANY, _JOB + "/state", OWNER, lambda own, ask: job_state_row(ask.job)),
    Route(ANY, _JOB + "/stragglers", OWNER, lambda own, ask: own.stragglers.page(ask.job)),
    Route(ANY, _JOB + "/tensorboard", OWNER, lambda own, ask: tensorboard_page(own.services, ask.job, ask.query)),
    Route(ANY, _JOB + "/training", OWNER, lambda own, ask: training_page(own.services, ask.job, ask.query)),
    Route(ANY, _JOB + "/why", OWNER, lambda own, ask: why_page(own.services, ask.job)),
    Route(ANY, _JOB + "/{page+}", OWNER, _absent(f"a job has no page {{page!r}}; there are {_PAGES}")),
    # Many jobs, hosts, and the service itself
    Route("GET HEAD", _V1 + "/jobs", OWNER, lambda own, ask: jobs_page(own.services, ask.query)),
    Route("GET HEAD", _V1 + "/compare", OWNER, lambda own, ask: compare_page(own.services, ask.query)),
    Route("GET HEAD", _V1 + "/hosts", OWNER, lambda own, ask: hosts_page(own.services, own.samples, own.machine)),
    Route("GET HEAD", _V1 + "/tuning", OWNER, lambda own, ask: own.tuning.listed(), hides_secrets=True),
    Route("POST", _TUNING + "/stop", OWNER, lambda own, ask: own.tuning.stop(ask.values["name"])),
    Route("GET HEAD", _TUNING, OWNER, lambda own, ask: own.tuning.page(ask.values["name"]), hides_secrets=True),
    *(
        Route(ANY, f"{_V1}/{page}", OWNER, _wrong_method("{path} is only read"))
        for page in ("jobs", "compare", "hosts", "tuning", "tuning/{name}")
    ),
    Route("POST", _V1 + "/spot", OWNER, lambda own, ask: set_capacity(own.market, ask.body)),
    Route(ANY, _V1 + "/spot", OWNER, lambda own, ask: spot_page(own.market)),
    Route(ANY, _V1 + "/rehearsal", OWNER, lambda own, ask: own.strikes.page()),
    Route("GET", _V1 + "/state", OWNER, lambda own, ask: state_page(own.services, own.backups, why_late(own.cluster))),
    Route("GET", _V1 + "/quarantine", OWNER, lambda own, ask: quarantine_page(own.services, ask.query)),
    Route("POST", _V1 + "/quarantine", OWNER, lambda own, ask: change_quarantine(own.services, ask.body)),
    Route("POST", _V1 + "/backup", OWNER, lambda own, ask: make_backup(own.backups)),
    *(
        Route(ANY, f"{_V1}/{page}", OWNER, _wrong_method("{method} {path} is not offered"))
        for page in ("state", "quarantine", "backup")
    ),
    Route(ANY, "{rest+}", OWNER, _absent("there is nothing at {path}")),
)
