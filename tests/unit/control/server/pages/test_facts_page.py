"""The pages of the command line: accessible with the admin token only, without secrets, logs page by page."""

import json
import math
from urllib.parse import quote

import pytest
from own_pages import FewParts
from server_parts import START, START_MS, FakeServices, document, request, running_job

from clary.base.errors import WireError
from clary.contract.agent_protocol import LogBlock
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.jobs.training_job import FinalMetric, JobFailure
from clary.control.server.pages import logs_page
from clary.control.store.log_files.logs import LogStore

JOB = "/clary/v1/jobs/job-1"


def routes(*live, stored=(), logs=None):
    return FewParts(FakeServices(live, stored, logs))


async def refusal(people, *args, **options):
    with pytest.raises(WireError) as refused:
        await people.handle(request(*args, **options))
    return refused.value


@pytest.mark.parametrize("token", ["", "wrong", "token2", "toke", "t\udcffken", "tök"])
async def test_every_page_is_refused_without_the_right_token(token):
    refused = await refusal(routes(running_job()), JOB, token=token)
    assert (refused.code, refused.http_status) == ("AccessDenied", 403)


@pytest.mark.parametrize("name", ["nope", "a%00b", "%2e%2e", "x" * 5000, "job-1%2Fplan", "%ff"])
async def test_a_missing_job_gives_404_whatever_its_name(name):
    refused = await refusal(routes(running_job()), f"/clary/v1/jobs/{name}")
    assert (refused.code, refused.http_status) == ("NotFound", 404)
    assert "there is no training job" in refused.message


async def test_a_missing_page_gives_404():
    refused = await refusal(routes(running_job()), f"{JOB}/secrets")
    assert (refused.code, refused.http_status) == ("NotFound", 404)


async def test_facts_of_a_live_job_name_hosts_times_exits_and_notes():
    facts = document(await routes(running_job()).handle(request(JOB)))
    assert (facts["status"], facts["secondary_status"]) == ("InProgress", "Training")
    first = facts["hosts"][0]
    assert first["exits"] == "rank 0: 3, rank 1: signal 9"
    assert (first["phase"], first["processes_per_host"], first["timings_s"]) == ("running", 1, {"code": 0.5})
    assert facts["warnings"] == ["mind the gap", "algo-1: a word", "algo-2: a word"]
    assert facts["emulation"] == ["ml.p4d.24xlarge has 8 GPUs"]
    assert facts["not_isolated"] == ["the clock"]
    assert facts["image"] == "image:1"
    assert facts["environment"] == "default (/env/bin/python)"
    assert [row["ended_at"] is None for row in facts["transitions"]] == [False, True]


async def test_facts_of_a_stored_job_have_its_failure_reason_and_last_metrics():
    job = running_job(
        status=TrainingJobStatus.FAILED,
        secondary_status=SecondaryStatus.FAILED,
        failure=JobFailure(fault="algorithm", message="boom", exit_code=3),
        final_metrics=(FinalMetric(name="loss", value=0.5, at=START),),
    )
    facts = document(await routes(stored=[job]).handle(request(JOB)))
    assert facts["failure_reason"].startswith("AlgorithmError: boom")
    assert facts["metrics"][0]["value"] == 0.5


async def test_the_state_of_a_job_is_a_separate_page_for_clients_that_poll():
    assert document(await routes(running_job()).handle(request(f"{JOB}/state"))) == {
        "name": "job-1",
        "status": "InProgress",
        "secondary_status": "Training",
        "state": "Running",
        "failure_reason": "",
    }
    came = running_job(secondary_status=SecondaryStatus.STARTING, attempt=0, plan=None, hosts={}, log_streams=())
    assert document(await routes(came).handle(request(f"{JOB}/state")))["state"] == "Queued"


async def test_facts_of_a_waiting_job_have_the_reason_of_its_wait_and_no_plan():
    job = running_job(plan=None, hosts={}, log_streams=(), pending_reason="2 of 4 hosts free")
    facts = document(await routes(job).handle(request(JOB)))
    assert (facts["pending_reason"], facts["hosts"], facts["environment"]) == ("2 of 4 hosts free", [], "")
    refused = await refusal(routes(job), f"{JOB}/plan")
    assert (refused.code, refused.http_status) == ("NotFound", 404)
    assert refused.message == "job-1 has no launch plan yet: 2 of 4 hosts free"


async def test_no_page_shows_a_secret():
    job = running_job()
    secrets = [job.plan["agent_token"], job.plan["object_store"]["credentials"]["secret_access_key"]]
    assert all(secret in json.dumps(job.plan) for secret in secrets), "the plan itself has them"
    for page in ("", "/plan"):
        answer = await routes(job).handle(request(JOB + page))
        assert not [secret for secret in secrets if secret.encode() in answer.body]
    assert document(answer)["job_endpoint"]["credentials"]["access_key_id"] == "AKJOB"


@pytest.fixture
async def logs(tmp_path):
    store = LogStore(tmp_path / "logs")
    for stream in running_job().log_streams:
        await store.create_stream(stream, START)
    yield store
    await store.close()


def lines(*numbers, rank=0, text="line"):
    return [LogBlock(at_ms=START_MS + number, text=f"{text} {number}", rank=rank) for number in numbers]


async def read_all(people, query=""):
    """Read pages like the command line, until the last page; return every page."""
    pages, tokens = [], {}
    while True:
        after = "&".join([query, *(f"after.{stream}={token}" for stream, token in tokens.items())])
        pages.append(document(await people.handle(request(f"{JOB}/logs", query=after))))
        tokens = pages[-1]["tokens"]
        if pages[-1]["sure_until_ms"] is None:
            return pages


async def test_lines_of_both_hosts_are_sorted_by_time(logs):
    await logs.append("job-1/algo-1-1", 0, lines(1, 3))
    await logs.append("job-1/algo-2-1", 0, lines(2, 4, rank=1))
    people = routes(running_job(), logs=logs)
    (page,) = await read_all(people)
    assert [(line["host"], line["text"]) for line in page["lines"]] == [
        ("algo-1", "line 1"),
        ("algo-2", "line 2"),
        ("algo-1", "line 3"),
        ("algo-2", "line 4"),
    ]
    assert page["is_over"] is False
    (of_host,) = await read_all(people, "host=algo-2")
    assert [line["text"] for line in of_host["lines"]] == ["line 2", "line 4"]
    (of_rank,) = await read_all(people, "rank=0")
    assert [line["text"] for line in of_rank["lines"]] == ["line 1", "line 3"]


async def test_lines_of_one_rank_are_found_behind_many_lines_of_others(logs, monkeypatch):
    monkeypatch.setattr(logs_page, "LOG_PAGE", 5)
    await logs.append("job-1/algo-1-1", 0, [*lines(*range(12)), *lines(12, rank=7)])
    pages = await read_all(routes(running_job(), logs=logs), "rank=7")
    assert [line["text"] for page in pages for line in page["lines"]] == ["line 12"]
    assert [page["sure_until_ms"] for page in pages] == [START_MS + 4, START_MS + 9, None]


async def test_a_page_has_the_time_up_to_which_no_line_is_missing(logs, monkeypatch):
    monkeypatch.setattr(logs_page, "LOG_PAGE", 2)
    await logs.append("job-1/algo-1-1", 0, lines(1, 2, 3))
    await logs.append("job-1/algo-2-1", 0, lines(9))
    pages = await read_all(routes(running_job(), logs=logs))
    assert [page["sure_until_ms"] for page in pages] == [START_MS + 2, None]


async def test_a_page_that_long_lines_fill_early_does_not_end_the_log(logs):
    await logs.append("job-1/algo-1-1", 0, lines(*range(10), text="x" * 200_000))
    pages = await read_all(routes(running_job(), logs=logs))
    assert len(pages) > 1
    assert sum(len(page["lines"]) for page in pages) == 10


async def test_the_last_page_of_an_ended_job_is_marked(logs):
    job = running_job(status=TrainingJobStatus.COMPLETED, secondary_status=SecondaryStatus.COMPLETED)
    (page,) = await read_all(routes(stored=[job], logs=logs))
    assert page["is_over"] is True


async def test_an_unknown_host_gives_404(logs):
    refused = await refusal(routes(running_job(), logs=logs), f"{JOB}/logs", query="host=algo-9")
    assert (refused.code, refused.http_status) == ("NotFound", 404)
    assert refused.message == "job-1 has no host 'algo-9'; it has algo-1, algo-2"


async def test_an_invalid_page_token_is_refused(logs):
    people = routes(running_job(), logs=logs)
    refused = await refusal(people, f"{JOB}/logs", query="after.job-1/algo-1-1=f%2Fnonsense")
    assert (refused.code, refused.http_status) == ("ValidationException", 400)


async def test_lines_of_a_time_range_are_returned_page_by_page(logs, monkeypatch):
    monkeypatch.setattr(logs_page, "LOG_PAGE", 2)
    await logs.append("job-1/algo-1-1", 0, lines(*range(10)))
    await logs.append("job-1/algo-2-1", 0, lines(4, 20, rank=1))
    people = routes(running_job(), logs=logs)
    stretch = f"since_ms={START_MS + 3}&until_ms={START_MS + 8}"
    pages = await read_all(people, stretch)
    assert sorted(line["at_ms"] - START_MS for page in pages for line in page["lines"]) == [3, 4, 4, 5, 6, 7]
    (late,) = await read_all(people, f"since_ms={START_MS + 15}")
    assert [line["at_ms"] - START_MS for line in late["lines"]] == [20]
    after = "&".join(f"after.{stream}={token}" for stream, token in late["tokens"].items())
    await logs.append("job-1/algo-1-1", 10, lines(30))
    grown = document(await people.handle(request(f"{JOB}/logs", query=f"since_ms={START_MS + 15}&{after}")))
    assert [line["at_ms"] - START_MS for line in grown["lines"]] == [30]


@pytest.mark.parametrize("value", ["", "x", "-1", "1.5", "9" * 16, "\u0661"])
async def test_a_time_that_is_no_number_is_refused(logs, value):
    refused = await refusal(routes(running_job(), logs=logs), f"{JOB}/logs", query=f"since_ms={quote(value)}")
    assert (refused.code, refused.http_status) == ("ValidationException", 400)
    assert refused.message.startswith("since_ms must be milliseconds since 1970")


async def test_an_existing_attempt_can_be_requested_and_an_unknown_one_lists_them(logs):
    await logs.append("job-1/algo-1-1", 0, lines(1))
    (page,) = await read_all(routes(running_job(), logs=logs), "attempt=1")
    assert len(page["lines"]) == 1
    refused = await refusal(routes(running_job(), logs=logs), f"{JOB}/logs", query="attempt=2")
    assert (refused.code, refused.http_status) == ("NotFound", 404)
    assert refused.message == "job-1 has no attempt 2; it has 1"
    waiting = running_job(attempt=0, hosts={}, plan=None, log_streams=())
    refused = await refusal(routes(waiting, logs=logs), f"{JOB}/logs", query="attempt=1")
    assert refused.message == "job-1 has no attempt 1; no hosts were asked for yet"


async def test_a_deleted_stream_has_no_lines(logs):
    await logs.append("job-1/algo-2-1", 0, lines(1))
    await logs.delete_streams("job-1/algo-1-1")
    (page,) = await read_all(routes(running_job(), logs=logs))
    assert [line["host"] for line in page["lines"]] == ["algo-2"]


async def test_numbers_that_json_does_not_have_become_null_for_token_clients_too():
    job = running_job(final_metrics=(FinalMetric(name="loss", value=math.nan, at=START),))
    answer = await routes(job).handler.handle(request(JOB))

    def refuse(name):
        pytest.fail(f"{name} is not JSON")

    assert json.loads(answer.body, parse_constant=refuse)["metrics"][0]["value"] is None
