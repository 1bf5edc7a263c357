"""Every route of the service's own pages, requested by every kind of caller."""

import hashlib
import json

import pytest
from own_pages import OWNER, SCRAPER, OwnPages
from spoken_boxes import BOOT, new_box

from clary.contract.agent_protocol import HostPhase
from clary.contract.training_values import status_token
from clary.control.engines.boxes.scheduler import BoxesScheduler
from clary.control.server.edge.guesses import MAX_WRONG
from clary.control.server.route_table import ROUTES as TABLE
from clary.control.server.routing import Who, match
from clary.control.wire.messages import HttpRequest
from clary.testing.control_plane import ControlPlane

AGENT, STATUS = "/clary/v1/agents/job/1/algo-1", "/clary/v1/status/job/1/algo-1"
POOL = "/clary/v1/pools/{pool}/algo-1/assignment"
JOB, V1 = "/clary/v1/jobs/job", "/clary/v1"
BOX = f"{V1}/boxes/box1"
PAGES = [
    *("state", "plan", "request", "why", "health", "series", "logs", "log-lines", "training", "tensorboard"),
    *("metric-values", "stragglers", "dump", "profile", "profiler-report", "checkpoints", "downloads", "rehearsals"),
    "records",
]
ACTS = ["dump", "profile", "reclaim", "rerun", "stop", "strike", "rehearsals"]
# The caller that a route is for, the method and the path.
ROUTES = [
    *(("agent", "GET", f"{AGENT}/{page}") for page in ("assignment", "orders")),
    *(
        ("agent", "POST", f"{AGENT}/{act}")
        for act in ("reports", "logs", "dumps", "profiles", "traces", "samples", "training")
    ),
    ("agent", "GET", f"{AGENT}/nothing"),
    ("pool", "GET", POOL),
    ("program", "POST", STATUS),
    ("program", "PUT", STATUS),
    ("scraper", "GET", "/metrics"),
    *(("owner", "GET", f"{V1}/{page}") for page in ("jobs", "hosts", "compare", "spot", "rehearsal", "state")),
    *(("owner", "GET", f"{V1}/{page}") for page in ("quarantine", "tuning", "tuning/nobody")),
    *(("owner", "POST", f"{V1}/{act}") for act in ("spot", "quarantine", "backup", "tuning/nobody/stop")),
    *(("owner", "GET", path) for path in (JOB, f"{JOB}/", f"{JOB}/nothing", f"{V1}/jobs/nobody", f"{V1}/nothing")),
    *(("owner", "GET", f"{JOB}/{page}") for page in PAGES),
    *(("owner", "POST", f"{JOB}/{act}") for act in ACTS),
    *(("owner", method, f"{V1}/{page}") for method in ("PUT", "DELETE") for page in ("jobs", "state", "spot")),
    ("token", "POST", f"{V1}/session-code"),
    ("box", "POST", f"{BOX}/leases"),
    ("box", "GET", f"{BOX}/boot/{hashlib.sha256(BOOT.script.encode()).hexdigest()}"),
    ("joiner", "POST", f"{V1}/join"),
    ("owner", "GET", f"{V1}/boxes"),
    ("owner", "GET", f"{V1}/capacity"),
    *(("owner", "POST", path) for path in (f"{V1}/boxes", f"{V1}/join-tokens")),
    *(("owner", "POST", f"{BOX}/{act}") for act in ("drain", "resume", "remove")),
]
NOT_SIGNED_IN = (401, "NotSignedIn", "sign in first: `clary console` prints a link")
NO_TOKEN = (403, "AccessDenied", "this page needs `Authorization: Bearer TOKEN`")
WRONG = {
    "agent": (403, "AccessDenied", "the token does not open attempt 1 of job"),
    "pool": (403, "AccessDenied", "the token does not open pool {pool}"),
    "program": (403, "AccessDenied", "the token does not open the status of job"),
    "owner": (403, "AccessDenied", "this service does not accept the token"),
    "box": (403, "AccessDenied", "the token does not open box box1"),
    "joiner": (
        403,
        "AccessDenied",
        "the token does not let a box join: it was used, or has expired; make one with: clary hosts token",
    ),
    "token": (403, "AccessDenied", "this service does not accept the token"),
    "scraper": (
        403,
        "AccessDenied",
        "the token does not open /metrics; `clary metrics --token` prints the one that does",
    ),
}


class World:
    """Two jobs that run, one of them in a pool, and a token of every kind."""

    def __init__(self, plane, folder, pool, desk, tokens):
        self.plane, self.folder, self.pool = plane, folder, pool
        self.pages = OwnPages(plane, folder, boxes=desk)
        job, victim = (plane.hub.live_job(name).plan["agent_token"] for name in ("job", "victim"))
        self.tokens = {
            "agent": job,
            "program": status_token(job, job="job", attempt=1, host="algo-1"),
            "pool": plane.pool_gateway.token_of(pool),
            "scraper": SCRAPER,
            "owner": OWNER,
            **tokens,
            "agent of another job": victim,
            "program of another job": status_token(victim, job="victim", attempt=1, host="algo-1"),
            "nobody": "wrong",
            "no text": "t\udcff",
        }
        self.num_asked = 0

    def request(self, method, path, token=None, *headers, body=b"{}"):
        self.num_asked += 1  # each request from another address: wrong tokens are counted by address
        pairs = [("Host", "h"), *headers, *([] if token is None else [("Authorization", f"Bearer {token}")])]
        return HttpRequest(
            method, path.replace("{pool}", self.pool), "", pairs, body, remote=f"10.0.0.{self.num_asked}"
        )

    async def ask(self, *args, **options):
        """Return status, code and message of a refusal, or status, "" and document of a success."""
        answer, _ = await self.pages.answer(self.request(*args, **options))
        if answer.header("content-type") != "application/json":
            return answer.status, "", ""
        document = json.loads(answer.body)
        if isinstance(document, dict) and "__type" in document:
            return answer.status, document["__type"], document["message"]
        return answer.status, "", document


@pytest.fixture
async def world(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        kept = {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1}
        await plane.create("victim")
        await plane.create("job", ResourceConfig={**kept, "KeepAlivePeriodInSeconds": 600})
        await plane.passes()
        for phase in (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING):
            await plane.agent("job").report(phase)
        scheduler = BoxesScheduler(tmp_path / "boxes", plane.clock)
        await scheduler.start(BOOT)
        tokens = {
            "box": (await scheduler.desk.add(new_box("box1"))).token,
            "box of another name": (await scheduler.desk.add(new_box("box2"))).token,
            "joiner": (await scheduler.desk.join_token(3600.0))["token"],
        }
        yield World(plane, tmp_path, plane.hub.live_job("job").pool, scheduler.desk, tokens)


def opens(who, token_of):
    """Whether a token of the kind `token_of` may use the routes of `who`."""
    return token_of == who or (who, token_of) == ("token", "owner")


WHO = {
    "agent": Who.AGENT,
    "pool": Who.POOL_AGENT,
    "program": Who.PROGRAM,
    "scraper": Who.SCRAPER,
    "owner": Who.OWNER,
    "token": Who.TOKEN,
    "box": Who.BOX,
    "joiner": Who.JOINER,
}


def row_of(method, path):
    return match(TABLE, method, path.replace("{pool}", "pool_0123456789ab"))[0]


def test_every_row_of_the_table_is_requested_here_with_its_kind_of_caller():
    for who, method, path in ROUTES:
        assert row_of(method, path).who is WHO[who], (method, path)
    asked = [(method, path) for _, method, path in ROUTES] + [(method, path) for method, path, *_ in ODD + OF_THE_OWNER]
    reached = [row_of(method, path) for method, path in asked]
    assert [(row.methods, row.path) for row in TABLE if row not in reached] == []
    open_to_all = ("session", "session-code", "authority", "allocations/{pool}/{index}", "agent/{digest}")
    assert {row.path for row in TABLE if row.who is Who.ANYBODY} == {f"{V1}/{page}" for page in open_to_all}


async def test_no_route_accepts_the_tokens_of_other_callers(world):
    for who, method, path in ROUTES:
        for token_of, token in world.tokens.items():
            if opens(who, token_of):
                continue
            refused = await world.ask(method, path, token)
            expected = NO_TOKEN if token_of == "no text" else WRONG[who]
            assert refused == (*expected[:2], expected[2].replace("{pool}", world.pool)), (method, path, token_of)


async def test_no_route_is_open_without_a_token(world):
    for who, method, path in ROUTES:
        refused = await world.ask(method, path)
        assert refused == (NOT_SIGNED_IN if who == "owner" else NO_TOKEN), (method, path)


async def test_only_owner_routes_accept_a_session_and_changes_need_the_csrf_value(world):
    session, cookie = world.pages.sessions.begin()
    headers = [
        ("Cookie", f"{world.pages.sessions.cookie_name(is_secure=False)}={cookie}"),
        ("Origin", "http://h"),
        ("X-Clary-Csrf", session.csrf),
    ]
    for who, method, path in ROUTES:
        status, code, _ = await world.ask(method, path, None, *headers[:2])
        if who != "owner":
            assert (status, code) == NO_TOKEN[:2], (method, path)
        elif method != "GET":
            assert (status, code) == (403, "AccessDenied"), (method, path)
            status, *_ = await world.ask(method, path, None, headers[0], headers[2])
            assert status == 403, (method, path)
            status, *_ = await world.ask(method, path, None, *headers)
            assert status not in (401, 403) or path.endswith("/strike"), (method, path)
        else:
            assert status not in (401, 403) or path.endswith("/records"), (method, path)


async def test_every_route_accepts_the_callers_that_it_is_for(world):
    for who, method, path in ROUTES:
        for token_of, token in world.tokens.items():
            if opens(who, token_of):
                status, code, words = await world.ask(method, path, token)
                assert status not in (401, 403) or "is not a rehearsal" in words, (method, path, code, words)
                assert (status == 404) <= ("dump" in path or "profile" in path or "plan" in path or "no" in words)


async def test_wrong_tokens_at_any_route_are_slowed_down_and_the_right_token_passes(world):
    for _who, method, path in ROUTES:
        request = world.request(method, path, "wrong")
        answers = [await world.pages.answer(request) for _ in range(MAX_WRONG + 1)]
        assert [answer.status for answer, _ in answers] == [403] * MAX_WRONG + [429], (method, path)


async def test_an_agent_of_an_ended_attempt_gets_410(world):
    token = world.tokens["agent"]
    gone = await world.ask("GET", "/clary/v1/agents/job/2/algo-1/orders", token)
    assert gone == (410, "AttemptOver", "attempt 2 of job is over")
    gone = await world.ask("POST", "/clary/v1/status/job/2/algo-1", token)
    assert gone == (410, "AttemptOver", "attempt 2 of job does not run on algo-1")
    gone = await world.ask("GET", "/clary/v1/agents/job/1/algo-2/orders", token)
    assert gone == (404, "NoSuchHost", "job has no host algo-2")


NO_NODES = "this service starts no hosts on other machines (setting engine is local)"
ODD = [
    ("GET", "/clary/v1/agents/", 404, "no such agent path: /clary/v1/agents/"),
    ("GET", f"{AGENT}/orders/more", 404, f"no such agent path: {AGENT}/orders/more"),
    ("GET", "/clary/v1/agents/job/x/algo-1/orders", 404, "no such agent path: /clary/v1/agents/job/x/algo-1/orders"),
    ("GET", "/clary/v1/pools/x/algo-1/assignment", 404, "no such path of a pool: /clary/v1/pools/x/algo-1/assignment"),
    ("GET", STATUS, 404, f"no such status: GET {STATUS}"),
    ("POST", "/clary/v1/status/x", 404, "no such status: POST /clary/v1/status/x"),
    ("GET", f"{V1}/session", 401, NOT_SIGNED_IN[2]),
    ("OPTIONS", f"{V1}/session", 405, "a session has no OPTIONS"),
    ("DELETE", f"{V1}/session", 200, {}),
    ("POST", f"{V1}/session", 400, 'expected {"token": "..."} or {"code": "..."}'),
    ("GET", f"{V1}/session-code", 405, "a code is asked for by POST"),
    ("GET", f"{V1}/authority", 200, {"ca_pem": BOOT.ca_pem}),
    ("POST", f"{V1}/allocations/pool_0123456789ab/0", 410, NO_NODES),
    ("GET", f"{V1}/allocations/pool_0123456789ab", 404, f"no such allocation: GET {V1}/allocations/pool_0123456789ab"),
    ("GET", f"{V1}/agent/{'d' * 64}", 404, NO_NODES),
    ("POST", f"{V1}/agent/x/y", 404, f"no such bundle: POST {V1}/agent/x/y"),
]


@pytest.mark.parametrize(("method", "path", "status", "words"), ODD)
async def test_unknown_paths_give_the_same_error_without_a_valid_token(world, method, path, status, words):
    for token in (None, "wrong"):
        answered = await world.ask(method, path, token)
        assert (answered[0], answered[2]) == (status, words)


OF_THE_OWNER = [
    ("GET", "/clary/v1/nothing", 404, "there is nothing at /clary/v1/nothing"),
    ("GET", "/clary/v1/jobs/nobody/stop", 404, "there is no training job 'nobody'"),
    ("POST", "/clary/v1/jobs", 405, "/clary/v1/jobs is only read"),
    ("POST", "/clary/v1/compare", 405, "/clary/v1/compare is only read"),
    ("PUT", "/clary/v1/hosts", 405, "/clary/v1/hosts is only read"),
    ("POST", "/clary/v1/tuning", 405, "/clary/v1/tuning is only read"),
    ("DELETE", "/clary/v1/tuning/tuned", 405, "/clary/v1/tuning/tuned is only read"),
    ("POST", "/clary/v1/state", 405, "POST /clary/v1/state is not offered"),
    ("GET", "/clary/v1/backup", 405, "GET /clary/v1/backup is not offered"),
    ("PUT", "/clary/v1/quarantine", 405, "PUT /clary/v1/quarantine is not offered"),
]


@pytest.mark.parametrize(("method", "path", "status", "words"), OF_THE_OWNER)
async def test_unknown_paths_give_an_error_to_the_owner(world, method, path, status, words):
    answered = await world.ask(method, path, OWNER)
    assert (answered[0], answered[2]) == (status, words)


@pytest.mark.parametrize("page", ["nothing", "stop", "rerun", "strike", "reclaim", "a/b"])
async def test_an_unknown_page_of_a_job_gives_the_list_of_pages(world, page):
    status, code, words = await world.ask("GET", f"{JOB}/{page}", OWNER)
    assert (status, code) == (404, "NotFound")
    assert words == (
        f"a job has no page '{page}'; there are state, plan, request, why, logs, log-lines, series, training, "
        "tensorboard, metric-values, stragglers, health, dump, profile, profiler-report, checkpoints, downloads and "
        "rehearsals; stop, rerun, strike and reclaim by POST"
    )


async def test_a_quiet_request_gets_200_with_the_error_status_in_a_header(world):
    quiet = ("X-Clary-Quiet", "1")
    for method, path, token, told in [
        ("GET", f"{V1}/session", None, "401"),
        ("GET", f"{V1}/jobs/nobody", OWNER, "404"),
        ("GET", f"{AGENT}/nothing", world.tokens["agent"], "404"),
    ]:
        answer, _ = await world.pages.answer(world.request(method, path, token, quiet))
        assert (answer.status, answer.header("X-Clary-Status")) == (200, told)
    assert (await world.ask("GET", "/clary/v1/agents/x", None, quiet))[0] == 404, (
        "nobody is told by a strangers' header"
    )


@pytest.mark.parametrize(("setting", "status"), [("open", 200), ("off", 404)])
async def test_the_setting_opens_the_metrics_to_all_callers_or_closes_them(world, setting, status):
    world.pages = OwnPages(world.plane, world.folder, metrics_page=setting)
    for token in (None, "wrong", SCRAPER):
        assert (await world.ask("GET", "/metrics", token))[0] == status


MOST = {"agent": 1 << 23, "pool": 8192, "program": 64 * 1024, "owner": 256 * 1024, "box": 256 * 1024}


async def test_the_size_of_a_body_is_limited_by_its_route_and_charged_to_its_sender(world):
    clients = {
        "agent": "agent of algo-1 of job",
        "pool": f"agent of algo-1 of {world.pool}",
        "program": "program of algo-1 of job",
        "owner": "owner",
        "box": "box box1",
    }
    for who, method, path in ROUTES:
        if who in clients:
            admitted = world.pages.handler.admit(world.request(method, path, world.tokens[who]))
            assert (admitted.client, admitted.max_body_bytes, admitted.is_known) == (clients[who], MOST[who], True)


async def test_routes_of_boxes_give_a_conflict_under_another_engine(world):
    world.pages = OwnPages(world.plane, world.folder)
    told = 409, "Conflict", "this service gets its hosts from local; start it with: clary up --engine boxes"
    asked = [(who, method, path) for who, method, path in ROUTES if "box" in path or "join" in path]
    assert len(asked) == 9
    for who, method, path in asked:
        assert await world.ask(method, path, world.tokens[who]) == told, (method, path)


async def test_an_unknown_box_gives_410(world):
    gone = await world.ask("POST", f"{V1}/boxes/box9/leases", world.tokens["box"])
    assert gone == (410, "BoxUnknown", "there is no box 'box9': it was removed")
    nowhere = await world.ask("POST", f"{V1}/boxes/-x/leases", OWNER)
    assert nowhere == (404, "NotFound", f"there is nothing at {V1}/boxes/-x/leases")
