"""Pages of the console: the list of jobs, log lines, metrics, hosts, comparisons, stop; values hidden from browsers."""

import json
import math
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
from own_pages import FewParts
from server_parts import START, START_MS, FakeServices, document, request, running_job

from clary.base.errors import WireError
from clary.contract.agent_protocol import LogBlock
from clary.contract.health import Check, FindingState, HealthFinding
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.jobs.training_job import EndCause, FinalMetric, JobFailure
from clary.control.server.edge.internal_http import finite_answer, json_answer, query_of
from clary.control.server.edge.sessions import Sessions
from clary.control.server.pages.compare_page import differences
from clary.control.store.log_files.logs import LogStore
from clary.control.store.store import Store
from clary.control.wire.messages import HttpRequest
from clary.testing.fake_clock import FakeClock

JOB = "/clary/v1/jobs/job-1"


@pytest.fixture
async def store(tmp_path):
    store = await Store.open(f"sqlite:///{tmp_path}/clary.db")
    yield store
    await store.close()


@pytest.fixture
async def logs(tmp_path):
    logs = LogStore(tmp_path / "logs")
    yield logs
    await logs.close()


class FakeSamples:
    """The last values that hosts measured."""

    def __init__(self, *values):
        self._values = values

    def last_values(self, jobs):
        names = {job.name for job in jobs}
        return [values for values in self._values if values.job_name in names]


def services_of(store=None, *, live=(), waiting=(), logs=None, stored=()):
    services = FakeServices((*live, *waiting), stored, logs)
    services.hub.waiting_jobs = lambda: {job.name: job for job in waiting}
    services.hub.active_jobs = lambda: list(live)
    if store is not None:
        services.store = store
    return services


def console(services, *samples):
    return FewParts(services, samples=FakeSamples(*samples))


async def page(routes, path, query="", **options):
    return document(await routes.handle(request(path, query=query, **options)))


async def refusal(routes, path, query="", **options):
    with pytest.raises(WireError) as refused:
        await routes.handle(request(path, query=query, **options))
    return refused.value


async def test_the_list_has_the_facts_of_each_job_newest_first(store):
    done = replace(
        running_job(name="done"),
        arn="arn:done",
        status=TrainingJobStatus.FAILED,
        secondary_status=SecondaryStatus.FAILED,
        failure=JobFailure(fault="algorithm", message="boom", exit_code=3),
        training_started_at=START,
        training_ended_at=START + timedelta(seconds=4),
        final_metrics=(FinalMetric(name="loss", value=math.nan, at=START),),
    )
    waits = running_job(
        name="waits",
        arn="arn:waits",
        plan=None,
        hosts={},
        created_at=START + timedelta(seconds=1),
        pending_reason="0 of 2",
    )
    await store.create_job(done, {"team": "x"})
    await store.create_job(waits, {})
    answer = await console(services_of(store, waiting=[waits])).handle(request("/clary/v1/jobs"))
    found = document(finite_answer(answer))
    assert [job["name"] for job in found["jobs"]] == ["waits", "done"]
    assert (found["next"], found["total"]) == (None, 2)
    assert found["counts"] == {"InProgress": 1, "Stopping": 0, "Completed": 0, "Failed": 1, "Stopped": 0}
    first, second = found["jobs"]
    assert (first["pending_reason"], first["duration_s"], first["started_at"]) == ("0 of 2", None, None)
    assert second["failure_reason"].startswith("AlgorithmError: boom")
    assert (second["duration_s"], second["tags"]) == (4.0, {"team": "x"})
    assert second["metrics"] == [{"name": "loss", "value": None}]


async def test_jobs_far_back_in_the_queue_get_their_position_without_a_check_of_all_jobs_ahead(store):
    waiting = [
        running_job(name=f"w{number:03}", arn=f"arn:{number}", plan=None, hosts={}, pending_reason="looked at")
        for number in range(60)
    ]
    for job in waiting:
        await store.create_job(job, {})
    found = await page(console(services_of(store, waiting=waiting)), "/clary/v1/jobs", "sort=name")
    reasons = [job["pending_reason"] for job in found["jobs"]]
    assert reasons[:20] == ["looked at"] * 20
    assert reasons[59] == "First come, first served: 59 older jobs wait for hosts."


async def test_a_search_finds_jobs_by_their_state_and_by_the_reason_of_their_wait(store):
    statuses = {"secondary_status": SecondaryStatus.PENDING, "attempt": 0, "plan": None, "hosts": {}}
    waiting = [
        running_job(name=f"w{number:03}", arn=f"arn:{number}", pending_reason="2 of 4 hosts are free", **statuses)
        for number in range(30)
    ]
    for job in (*waiting, running_job(name="at-work", arn="arn:w")):
        await store.create_job(job, {})
    routes = console(services_of(store, waiting=waiting))
    for search, total in (
        ("queued", 30),
        ("Running", 1),
        ("2 of 4 hosts", 20),
        ("first served: 25 older", 1),
        ("5 of 4", 0),
    ):
        found = await page(routes, "/clary/v1/jobs", f"search={search.replace(' ', '%20')}")
        assert (search, found["total"]) == (search, total)
    found = await page(routes, "/clary/v1/jobs", "sort=status")
    assert [job["state"] for job in found["jobs"]] == ["Queued"] * 30 + ["Running"]


async def test_the_next_page_of_the_list_continues_and_counts_stay_whole(store):
    for number in range(5):
        await store.create_job(running_job(name=f"j{number}", arn=f"arn:{number}"), {})
    routes, names, query = console(services_of(store)), [], "sort=name&limit=2&search=J"
    for _ in range(3):
        found = await page(routes, "/clary/v1/jobs", query)
        names += [job["name"] for job in found["jobs"]]
        assert found["total"] == 5
        query = f"sort=name&limit=2&search=J&after={found['next']}"
    assert (names, found["next"]) == ([f"j{number}" for number in range(5)], None)


async def test_a_skip_leaves_out_jobs_between_two_pages(store):
    for number in range(9):
        await store.create_job(running_job(name=f"j{number}", arn=f"arn:{number}"), {})
    routes = console(services_of(store))
    first = await page(routes, "/clary/v1/jobs", "sort=name&limit=2")
    far = await page(routes, "/clary/v1/jobs", f"sort=name&limit=2&after={first['next']}&skip=4")
    assert [job["name"] for job in far["jobs"]] == ["j6", "j7"]
    assert far["total"] == 9
    last = await page(routes, "/clary/v1/jobs", f"sort=name&limit=5&after={far['next']}")
    assert ([job["name"] for job in last["jobs"]], last["next"]) == (["j8"], None)


@pytest.mark.parametrize(
    "query",
    [
        "sort=color",
        "order=up",
        "status=Done",
        "limit=0",
        "limit=501",
        "limit=-1",
        "limit=x",
        "after=forged",
        f"search={'x' * 201}",
        "limit=9999999999",
        "skip=-1",
        "skip=x",
        "skip=1000000",
    ],
)
async def test_an_invalid_query_is_refused_with_valid_values(store, query):
    refused = await refusal(console(services_of(store)), "/clary/v1/jobs", query)
    assert (refused.code, refused.http_status) == ("ValidationException", 400)


@pytest.mark.parametrize("search", ["%00", "%25", "'%20OR%201=1--", "%ff", "<script>", "%5C", "job%0A"])
async def test_a_hostile_search_text_is_taken_literally(store, search):
    await store.create_job(running_job(), {})
    found = await page(console(services_of(store)), "/clary/v1/jobs", f"search={search}")
    assert [job["name"] for job in found["jobs"]] in ([], ["job-1"])


async def test_pages_of_many_jobs_need_the_token_and_accept_only_get(store):
    routes = console(services_of(store))
    for path in ("/clary/v1/jobs", "/clary/v1/hosts", "/clary/v1/compare"):
        assert (await refusal(routes, path, token="wrong")).http_status == 403
        assert (await refusal(routes, path, method="POST")).http_status == 405


def people(services):
    return FewParts(services)


async def log_of(logs, *, num_lines=10):
    for host in ("algo-1", "algo-2"):
        await logs.create_stream(f"job-1/{host}-1", START)
        blocks = [LogBlock(at_ms=START_MS + i, text=f"{host} line {i}", rank=i % 2) for i in range(num_lines)]
        await logs.append(f"job-1/{host}-1", 0, blocks)


async def test_log_lines_are_newest_first_and_pages_join_without_a_gap(logs):
    await log_of(logs)
    routes = people(services_of(live=[running_job()], logs=logs))
    whole = await page(routes, f"{JOB}/log-lines", "limit=100")
    assert [line["text"] for line in whole["lines"][:3]] == ["algo-2 line 9", "algo-1 line 9", "algo-2 line 8"]
    assert whole["lines"][0] == {
        "at_ms": START_MS + 9,
        "host": "algo-2",
        "rank": 1,
        "text": "algo-2 line 9",
        "cursor": f"{START_MS + 9}.algo-2.9",
    }
    assert whole["num_lines"] == 20
    few = await page(routes, f"{JOB}/log-lines", "limit=3&search=line%209&host=algo-1")
    assert (len(few["lines"]), few["num_lines"]) == (1, 10)
    assert (whole["next"], whole["searched_until"], whole["is_over"], whole["hosts"]) == (
        None,
        None,
        False,
        ["algo-1", "algo-2"],
    )
    found, query = [], "limit=3"
    for _ in range(20):
        one = await page(routes, f"{JOB}/log-lines", query)
        found += one["lines"]
        if one["next"] is None:
            break
        query = f"limit=3&before={one['next']}"
    assert found == whole["lines"]
    middle = found[8]["cursor"]
    older = await page(routes, f"{JOB}/log-lines", f"limit=100&before={middle}")
    newer = await page(routes, f"{JOB}/log-lines", f"limit=100&after={middle}")
    assert (newer["lines"], older["lines"]) == (found[:8], found[9:])
    # In both directions from a page, no line is lost and only the page's own boundary line is repeated.
    back = await page(routes, f"{JOB}/log-lines", f"limit=100&after={older['previous']}")
    forth = await page(routes, f"{JOB}/log-lines", f"limit=100&before={newer['next']}")
    assert (back["lines"], forth["lines"]) == (found[:9], found[8:])


async def test_log_lines_are_searched_by_text_host_and_rank_and_followed(logs):
    await log_of(logs)
    routes = people(services_of(live=[running_job()], logs=logs))
    found = await page(routes, f"{JOB}/log-lines", "host=algo-2&rank=1&search=LINE")
    assert [line["text"] for line in found["lines"]] == [f"algo-2 line {number}" for number in (9, 7, 5, 3, 1)]
    await logs.append("job-1/algo-2-1", 10, [LogBlock(at_ms=START_MS + 50, text="a new line", rank=1)])
    newer = await page(routes, f"{JOB}/log-lines", f"host=algo-2&rank=1&search=LINE&after={found['previous']}")
    assert [line["text"] for line in newer["lines"]] == ["a new line"]
    again = await page(routes, f"{JOB}/log-lines", f"host=algo-2&rank=1&search=LINE&after={newer['previous']}")
    assert again["lines"] == []


async def test_a_line_that_arrives_late_is_not_missed_by_a_client_that_follows(logs):
    await log_of(logs)
    job = running_job()
    routes = people(services_of(live=[job], logs=logs))
    first = await page(routes, f"{JOB}/log-lines", "limit=5")
    late = [LogBlock(at_ms=START_MS + 10 + i, text=f"late {i}", rank=0) for i in range(3)]
    await logs.append("job-1/algo-2-1", 10, [LogBlock(at_ms=START_MS + 90, text="early", rank=0)])
    second = await page(routes, f"{JOB}/log-lines", f"limit=5&after={first['previous']}")
    await logs.append("job-1/algo-1-1", 10, late)
    third = await page(routes, f"{JOB}/log-lines", f"limit=2&after={second['previous']}")
    fourth = await page(routes, f"{JOB}/log-lines", f"limit=2&after={third['previous']}")
    fifth = await page(routes, f"{JOB}/log-lines", f"limit=2&after={fourth['previous']}")
    texts = [[line["text"] for line in one["lines"]] for one in (second, third, fourth, fifth)]
    assert texts == [["early"], ["late 1", "late 0"], ["late 2"], []]
    # Lines of one host, then of all hosts, and of a host that the job gets later.
    of_one = await page(routes, f"{JOB}/log-lines", "host=algo-1")
    await logs.append("job-1/algo-1-1", 13, [LogBlock(at_ms=START_MS + 13, text="later", rank=0)])
    of_all = await page(routes, f"{JOB}/log-lines", f"after={of_one['previous']}")
    assert [line["text"] for line in of_all["lines"]] == ["early", "later"]
    routes = people(services_of(live=[replace(job, log_streams=(*job.log_streams, "job-1/algo-3-1"))], logs=logs))
    await logs.create_stream("job-1/algo-3-1", START)
    await logs.append("job-1/algo-3-1", 0, [LogBlock(at_ms=START_MS, text="new host", rank=0)])
    of_more = await page(routes, f"{JOB}/log-lines", f"after={of_all['previous']}")
    assert [line["text"] for line in of_more["lines"]] == ["new host"]


async def test_a_job_without_hosts_has_no_lines_and_no_cursor(logs):
    job = running_job(log_streams=(), hosts={}, plan=None)
    found = await page(people(services_of(live=[job], logs=logs)), f"{JOB}/log-lines")
    assert (found["lines"], found["next"], found["previous"]) == ([], None, None)


async def test_hostile_lines_are_returned_unchanged_in_json_that_no_browser_renders(logs):
    hostile = "<img src=x onerror=alert(1)></script>\x1b[31m\u2028"
    await logs.create_stream("job-1/algo-1-1", START)
    await logs.append("job-1/algo-1-1", 0, [LogBlock(at_ms=START_MS, text=hostile)])
    job = running_job(log_streams=("job-1/algo-1-1",))
    answer = await people(services_of(live=[job], logs=logs)).handle(request(f"{JOB}/log-lines"))
    assert json.loads(answer.body)["lines"][0]["text"] == hostile
    assert answer.header("content-type") == "application/json"
    assert answer.header("x-content-type-options") == "nosniff"


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=2001",
        "limit=x",
        "rank=-1",
        "rank=x",
        "before=x",
        "after=1.algo-9.1",
        "before=1.algo-1.x",
        "after=1.algo-1.1~",
        "after=1.algo-1.1~1.x",
        "before=1.algo-1.1&after=1.algo-1.1",
        f"search={'x' * 501}",
    ],
)
async def test_an_invalid_cursor_is_refused(logs, query):
    await log_of(logs)
    refused = await refusal(people(services_of(live=[running_job()], logs=logs)), f"{JOB}/log-lines", query)
    assert refused.http_status == 400
    assert (
        await refusal(people(services_of(live=[running_job()], logs=logs)), f"{JOB}/log-lines", "host=algo-9")
    ).code == ("NotFound")


async def test_metrics_are_returned_as_curves_with_null_for_nan_and_infinity(store):
    await store.create_job(running_job(), {})
    values = (1.0, math.nan, math.inf)
    named = [FinalMetric(name="a,b", value=value, at=START + timedelta(seconds=i)) for i, value in enumerate(values)]
    await store.add_metrics("job-1", [*named, FinalMetric(name="c", value=2.0, at=START, step=7)])
    routes = people(services_of(store, live=[running_job()]))
    whole = await page(routes, f"{JOB}/metric-values")
    assert whole["metrics"] == {
        "a,b": [[START_MS, 1.0, None], [START_MS + 1000, None, None], [START_MS + 2000, None, None]],
        "c": [[START_MS, 2.0, 7]],
    }
    assert list((await page(routes, f"{JOB}/metric-values", "names=a,b"))["metrics"]) == ["a,b"]
    assert list((await page(routes, f"{JOB}/metric-values", "names=x,c"))["metrics"]) == ["c"]
    for query in ("points=1", "points=5001", "points=x", f"names={'a,' * 101}"):
        assert (await refusal(routes, f"{JOB}/metric-values", query)).http_status == 400


async def test_hosts_show_their_job_their_measurements_and_their_health():
    measured = SimpleNamespace(
        job_name="job-1", host="algo-1", values={"host/cpu_percent": 93.5, "host/memory_bytes": math.nan}
    )
    found = await page(console(services_of(live=[running_job()]), measured), "/clary/v1/hosts")
    first, second = found["hosts"]
    assert (first["name"], first["job"], first["state"], first["health"]) == ("algo-1", "job-1", "running", "unchecked")
    assert (first["cpu_percent"], first["memory_bytes"], second["cpu_percent"]) == (93.5, None, None)
    assert found["pools"] == []


@pytest.mark.parametrize(
    ("states", "shown"), [(["ok", "pending"], "checking"), (["ok", "warn"], "well"), (["bad", "pending"], "sick")]
)
async def test_a_host_is_well_only_once_its_last_check_has_ended(states, shown):
    findings = tuple(
        HealthFinding(check=check, state=FindingState(state), host="algo-1", words="w")
        for check, state in zip((Check.DISK, Check.CLOCK), states, strict=True)
    )
    job = running_job()
    record = job.hosts["algo-1"]
    record = replace(record, facts=replace(record.facts, health=findings))
    job = replace(job, hosts={**job.hosts, "algo-1": record})
    found = await page(console(services_of(live=[job])), "/clary/v1/hosts")
    assert found["hosts"][0]["health"] == shown


async def test_a_comparison_shows_differences_and_missing_jobs():
    def job(name, lr, **environment):
        sent = {"TrainingJobName": name, "HyperParameters": {"lr": lr, "same": "1"}, "Environment": environment}
        return running_job(name=name, arn=f"arn:{name}", request=sent)

    services = services_of(live=[job("a", "0.1", API_KEY="abc"), job("b", "0.2", API_KEY="xyz", MODE="x")])
    found = await page(console(services), "/clary/v1/compare", "jobs=a,b,b,nobody")
    assert [one["name"] for one in found["jobs"]] == ["a", "b"]
    assert found["missing"] == ["nobody"]
    assert found["differences"] == [
        {"key": "HyperParameters.lr", "values": ["0.1", "0.2"]},
        {"key": "Environment.MODE", "values": [None, "x"]},
    ]
    for query in ("", "jobs=", f"jobs={','.join(str(number) for number in range(21))}"):
        assert (await refusal(console(services), "/clary/v1/compare", query)).http_status == 400


def test_differences_distinguish_a_missing_member_from_an_empty_one():
    assert differences([{"A": {}}, {"A": {"B": "1"}}, {}]) == [
        {"key": "A", "values": ["{}", None, None]},
        {"key": "A.B", "values": [None, "1", None]},
    ]
    assert differences([{"A": [1, {"B": 2}]}, {"A": [1, {"B": 2}]}]) == []


async def test_stop_ends_a_job_and_is_refused_for_an_ended_job():
    applied = []

    async def apply(name, event):
        applied.append((name, event.cause, event.grace_s))
        return running_job(status=TrainingJobStatus.STOPPING, secondary_status=SecondaryStatus.STOPPING)

    services = services_of(live=[running_job()])
    services.hub.apply = apply
    services.settings = SimpleNamespace(stop_grace_s=7.0)
    found = await page(people(services), f"{JOB}/stop", method="POST")
    assert applied == [("job-1", EndCause.STOP_REQUESTED, 7.0)]
    assert (found["status"], found["grace_s"]) == ("Stopping", 7.0)
    assert (await refusal(people(services), f"{JOB}/stop")).http_status == 404  # a GET never stops a job
    over = running_job(status=TrainingJobStatus.COMPLETED, secondary_status=SecondaryStatus.COMPLETED)
    refused = await refusal(people(services_of(live=[over])), f"{JOB}/stop", method="POST")
    assert "is over: it is Completed" in refused.message


async def test_a_browser_gets_the_request_without_secrets_and_the_owner_s_token_gets_all(tmp_path):
    job = running_job(request={"Environment": {"HF_TOKEN": "hf_abc", "MODE": "x"}})
    sessions = Sessions(b"key", tmp_path / "revoked", FakeClock(START))
    routes = FewParts(services_of(live=[job]), sessions=sessions)
    cookie = ("Cookie", f"{sessions.cookie_name(is_secure=False)}={sessions.begin()[1]}")
    shown = document(await routes.handle(HttpRequest("GET", f"{JOB}/request", "", [cookie])))
    assert shown == {"request": {"Environment": {"HF_TOKEN": "(hidden)", "MODE": "x"}}}
    assert document(await routes.handle(request(f"{JOB}/request"))) == {"request": dict(job.request)}
    plan = document(await routes.handle(HttpRequest("GET", f"{JOB}/plan", "", [cookie])))
    assert plan["agent_token"] == "(hidden)"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("search=a%00b", {"search": "ab"}),
        ("sea%00rch=ab", {"search": "ab"}),
        (
            "search=a%0%000b",
            {"search": "a%00b"},
        ),  # the result is a text of five characters, without a NUL from its middle
        ("search=a\0b&status=", {"search": "ab", "status": ""}),
    ],
)
def test_a_query_gives_no_nul_however_it_is_encoded(query, found):
    assert query_of(request("/clary/v1/jobs", query=query)) == found


def test_numbers_that_json_does_not_have_become_null_and_texts_are_kept():
    answer = finite_answer(json_answer({"a": [math.nan, math.inf, -math.inf, 1.5], "b": "NaN, Infinity"}))
    assert json.loads(answer.body) == {"a": [None, None, None, 1.5], "b": "NaN, Infinity"}
    plain = json_answer({"a": 1})
    assert finite_answer(plain) is plain
