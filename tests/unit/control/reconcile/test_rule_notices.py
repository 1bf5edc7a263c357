"""Findings of rules are posted to the address of the setting, retried once, and then dropped."""

import asyncio
import contextlib
import logging
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from aiohttp import web

from clary.contract.statuses import RuleStatus, SecondaryStatus, TrainingJobStatus
from clary.control.jobs.rules.rule_evaluations import RuleEvaluation, RuleKind
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile import rule_notices
from clary.control.reconcile.rule_notices import RuleNotices

LIMIT_S = 60.0
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def new_job(name):
    return TrainingJob(
        name=name,
        arn="arn",
        request={},
        status=TrainingJobStatus.IN_PROGRESS,
        secondary_status=SecondaryStatus.TRAINING,
        transitions=(),
        created_at=NOW,
        modified_at=NOW,
    )


def found(job, *names):
    evaluations = tuple(
        RuleEvaluation(
            kind=RuleKind.DEBUG, name=name, status=RuleStatus.ISSUES_FOUND, details="step 3: bad", changed_at=NOW
        )
        for name in names
    )
    return replace(job, rule_evaluations=evaluations)


@contextlib.asynccontextmanager
async def listener(*statuses):
    """Yield an address that answers with these statuses in turn, and the list of notices that it received."""
    got, left = [], list(statuses)

    async def take(request):
        got.append(await request.json())
        return web.Response(status=left.pop(0) if left else 200)

    app = web.Application()
    app.router.add_post("/hook", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/hook?key=secret", got
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def sending(notices):
    task = asyncio.create_task(notices.send_all())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition):
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(rule_notices, "PAUSE_S", 0.01)


def test_each_finding_is_posted_once():
    async def scenario():
        async with listener() as (url, got):
            notices = RuleNotices(url)
            job = new_job("job")
            async with sending(notices):
                one = found(job, "a")
                notices.on_change(job, one)
                notices.on_change(one, replace(one, attempt=2))
                notices.on_change(one, found(job, "a", "b"))
                await until(lambda: len(got) == 2)
            return got

    first, second = asyncio.run(scenario())
    assert (first["rule_configuration_name"], second["rule_configuration_name"]) == ("a", "b")
    assert first["training_job_name"] == "job"
    assert first["status_details"] == "step 3: bad"


def test_a_failed_post_is_retried_once_and_the_address_is_not_logged(caplog):
    async def scenario():
        async with listener(500, 200, 500, 500) as (url, got):
            notices = RuleNotices(url)
            job = new_job("job")
            async with sending(notices):
                notices.on_change(job, found(job, "a"))
                await until(lambda: len(got) == 2)
                notices.on_change(job, found(job, "b"))
                await until(lambda: "was not taken" in caplog.text)
            return got

    with caplog.at_level(logging.WARNING):
        got = asyncio.run(scenario())
    assert [notice["rule_configuration_name"] for notice in got] == ["a", "a", "b", "b"]
    assert "rule b of job was not taken by rule_webhook_url: status 500" in caplog.text
    assert "secret" not in caplog.text


def test_an_unreachable_address_costs_no_more_than_its_retries(caplog):
    async def scenario():
        notices = RuleNotices("http://127.0.0.1:1/hook")
        job = new_job("job")
        async with sending(notices):
            notices.on_change(job, found(job, "a"))
            await until(lambda: "was not taken" in caplog.text)

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())


def test_without_an_address_no_notices_are_collected():
    async def scenario():
        notices = RuleNotices("")
        job = new_job("job")
        notices.on_change(job, found(job, "a"))
        await asyncio.wait_for(notices.send_all(), LIMIT_S)

    asyncio.run(scenario())
