"""Responses to agents: authorisation, orders, lines and metrics, also while their job is being deleted."""

import asyncio
import math
import time
from dataclasses import replace
from datetime import timedelta

import pytest

from clary.base.clock import SystemClock
from clary.base.errors import StoreError, WireError
from clary.contract.agent_protocol import (
    HEARTBEAT_INTERVAL_S,
    MAX_BATCH_LINES,
    CapacityNotice,
    Failure,
    HostFacts,
    HostPhase,
    LogBatch,
    LogBlock,
    MetricValue,
    OrderKind,
    Report,
)
from clary.control.jobs.training_job import FinalMetric
from clary.control.reconcile.hub import MAX_FINAL_METRICS
from clary.control.store.errors import JobNotFound
from clary.testing.control_plane import ControlPlane


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        await plane.create(num_hosts=2)
        await plane.passes()
        yield plane


def line(text, *, at, loss=None):
    metrics = () if loss is None else (MetricValue(name="loss", value=loss, at=at),)
    return LogBlock(at_ms=int(at.timestamp() * 1000), text=text, metrics=metrics)


def batch(plane, *losses, first=0):
    now = plane.clock.now()
    lines = [line(f"line {first + index}", at=now, loss=loss) for index, loss in enumerate(losses)]
    return LogBatch(first_sequence=first, blocks=tuple(lines))


async def losses_of(plane, name="job"):
    now = plane.clock.now()
    values = await plane.store.query_metrics(name, "loss", now - timedelta(days=1), now + timedelta(days=1))
    return [value.value for value in values]


def status_of(refusal):
    return refusal.value.http_status


@pytest.mark.parametrize("token", ["", "wrong", "\udc80\u20ac"])
async def test_a_wrong_token_is_refused(plane, token):
    agent = plane.agent()
    agent.token = token
    with pytest.raises(WireError) as refusal:
        agent.authorize()
    assert status_of(refusal) == 403


@pytest.mark.parametrize("name", ["", "\ud800", "a\0b", "x" * 2000])
async def test_a_metric_name_that_no_request_allows_is_refused_before_its_line_is_stored(plane, name):
    agent = plane.agent()
    found = MetricValue(name=name, value=1.0, at=plane.clock.now())
    with pytest.raises(WireError, match="no name of a metric") as refusal:
        await agent.send_logs(LogBatch(first_sequence=0, blocks=(LogBlock(at_ms=1, text="x", metrics=(found,)),)))
    assert status_of(refusal) == 400
    assert await plane.logs.next_sequence((await plane.job()).log_streams[0]) == 0


async def test_the_response_to_a_notice_names_the_stop_order_that_all_hosts_get(plane):
    agents = [plane.agent(host=host) for host in ("algo-1", "algo-2")]
    for agent in agents:
        await agent.report(HostPhase.PREPARING)
    before = (await plane.job()).hosts["algo-2"].order.number
    notice = CapacityNotice(why="SIGTERM from the engine", at=plane.clock.now(), grace_s=10.0)
    receipt = await agents[1].report(HostPhase.PREPARING, notice=notice)
    job = await plane.job()
    assert receipt.order_number == before + 1
    assert {(record.order.kind, record.order.grace_s) for record in job.hosts.values()} == {(OrderKind.STOP, 9.05)}
    assert (await plane.describe())["SecondaryStatus"] == "Interrupted"


async def test_a_batch_below_the_first_line_is_refused(plane):
    with pytest.raises(WireError, match="counts from 0") as refusal:
        await plane.agent().send_logs(batch(plane, 1.0, first=-1))
    assert status_of(refusal) == 400


async def test_a_failure_with_an_unknown_fault_is_refused_and_the_job_continues(plane):
    agent = plane.agent()
    with pytest.raises(WireError, match="unknown fault") as refusal:
        await agent.report(HostPhase.PREPARING, failure=Failure(fault="moon", message="full"))
    assert status_of(refusal) == 400
    assert (await plane.job()).failure is None
    await plane.agent().report(HostPhase.PREPARING)


async def test_a_host_that_reports_release_without_an_order_is_refused_and_the_job_can_end(plane):
    agent = plane.agent()
    with pytest.raises(WireError, match="was not told to leave") as refusal:
        await agent.report(HostPhase.RELEASED, exits=(plane.exit_of(0),))
    assert status_of(refusal) == 400
    assert (await plane.job()).hosts["algo-1"].facts.phase is HostPhase.LAUNCHING
    plane.engine.end_all_agents("job")
    await plane.passes(2)
    assert (await plane.job()).is_terminal


async def test_an_unknown_host_gets_404_and_another_attempt_410(plane):
    stranger = plane.agent(host="algo-3")
    with pytest.raises(WireError) as refusal:
        stranger.authorize()
    assert status_of(refusal) == 404
    agent = plane.agent()
    for agent.attempt in (0, 2):
        with pytest.raises(WireError) as refusal:
            agent.authorize()
        assert status_of(refusal) == 410


async def test_agents_of_an_ended_attempt_get_410(plane):
    agent = plane.agent()
    await plane.run_to_end(num_hosts=2)
    with pytest.raises(WireError) as refusal:
        agent.authorize()
    assert status_of(refusal) == 410


async def test_a_deleted_job_s_name_gets_new_keys_when_it_is_used_again(plane):
    old_agent = plane.agent()
    old_plan = (await plane.job()).plan
    await plane.run_to_end(num_hosts=2)
    await plane.delete()
    await plane.create(num_hosts=2)
    await plane.passes()
    plan = (await plane.job()).plan
    assert plan["attempt"] == old_plan["attempt"]
    assert plan["agent_token"] != old_plan["agent_token"]
    assert plan["job_endpoint"]["credentials"] != old_plan["job_endpoint"]["credentials"]
    with pytest.raises(WireError) as refusal:
        old_agent.authorize()
    assert status_of(refusal) == 403


async def test_the_assignment_is_the_plan_with_addresses(plane):
    plan = plane.gateway.assignment(plane.agent().authorize())
    assert [host.address for host in plan.hosts] == ["10.0.0.1", "10.0.0.2"]


async def test_a_heartbeat_writes_nothing(plane, monkeypatch):
    agent = plane.agent()
    receipt = await agent.report(HostPhase.PREPARING)
    assert (receipt.accepted, receipt.order_number) == (True, 1)

    async def no_write(name, change, **options):
        raise AssertionError("a heartbeat was written")

    monkeypatch.setattr(plane.store, "update_job", no_write)
    assert (await agent.report()).accepted


async def test_a_report_of_a_lost_host_is_not_accepted(plane):
    agent = plane.agent(host="algo-2")
    await agent.report(HostPhase.PREPARING)
    plane.clock.advance(6)
    await plane.passes()
    assert not (await agent.report()).accepted


async def test_a_report_on_a_job_that_was_just_deleted_gets_410(plane):
    agent = plane.agent()
    job = agent.authorize()
    await plane.store.delete_job("job")
    with pytest.raises(WireError) as refusal:
        await agent.report(HostPhase.PREPARING)
    assert status_of(refusal) == 410
    with pytest.raises(WireError) as refusal:
        await plane.gateway.append_logs(job, "algo-1", batch(plane, 1.0))
    assert status_of(refusal) == 410


async def test_lines_for_a_deleted_job_without_streams_get_410(plane):
    job = plane.agent().authorize()
    await plane.hub.delete("job")
    await plane.logs.delete_streams("job/")
    with pytest.raises(WireError) as refusal:
        await plane.gateway.append_logs(job, "algo-1", batch(plane, None))
    assert status_of(refusal) == 410


async def test_a_missing_stream_of_a_running_job_is_a_store_error(plane):
    await plane.logs.delete_streams("job/")
    with pytest.raises(StoreError):
        await plane.agent().send_logs(batch(plane, None))


async def test_a_new_order_is_returned_at_once_and_ends_the_poll_of_a_waiting_host(plane):
    first, second = plane.agent(), plane.agent(host="algo-2")
    order = await plane.gateway.next_order(first.authorize(), "algo-1", after=0, wait_s=60)
    assert (order.number, order.kind) == (1, OrderKind.PREPARE)
    waiting = asyncio.create_task(plane.gateway.next_order(first.authorize(), "algo-1", after=1, wait_s=60))
    for agent in (first, second):
        await agent.report(HostPhase.PREPARING)
    await asyncio.sleep(0)
    assert not waiting.done()
    for agent in (first, second):
        await agent.report(HostPhase.PREPARED)
    assert (await asyncio.wait_for(waiting, 5)).kind is OrderKind.RUN


async def test_the_current_order_is_returned_when_no_new_one_was_given_in_time(plane):
    plane.gateway._clock = SystemClock()
    begin = time.monotonic()
    order = await plane.gateway.next_order(plane.agent().authorize(), "algo-1", after=1, wait_s=0.05)
    assert order.number == 1
    assert 0.05 <= time.monotonic() - begin < 5


@pytest.mark.parametrize("wait_s", [0.0, -5.0, math.nan])
async def test_a_wait_of_an_invalid_length_returns_at_once(plane, wait_s):
    job = plane.agent().authorize()
    order = await asyncio.wait_for(plane.gateway.next_order(job, "algo-1", after=1, wait_s=wait_s), 5)
    assert order.number == 1


async def test_a_poll_for_orders_of_a_deleted_job_returns_a_release(plane):
    job = plane.agent().authorize()
    waiting = asyncio.create_task(plane.gateway.next_order(job, "algo-1", after=1, wait_s=60))
    await asyncio.sleep(0)
    await plane.hub.delete("job")
    order = await asyncio.wait_for(waiting, 5)
    assert (order.number, order.kind) == (2, OrderKind.RELEASE)


async def test_an_agent_whose_attempt_ends_during_its_request_is_released(plane):
    job = plane.agent().authorize()
    facts = HostFacts(phase=HostPhase.PREPARING, phase_started_at=plane.clock.now())
    waiting = asyncio.create_task(plane.gateway.next_order(job, "algo-1", after=1, wait_s=60))
    await asyncio.sleep(0)
    await plane.hub.update("job", lambda job: replace(job, hosts={}, plan=None))
    assert (await asyncio.wait_for(waiting, 5)).kind is OrderKind.RELEASE
    with pytest.raises(WireError, match="attempt 1 of job is over"):
        await plane.gateway.report(job, "algo-1", Report(number=9, facts=facts))


async def test_an_old_agent_gets_no_orders_of_a_new_job_under_the_same_name(plane):
    job = plane.agent().authorize()
    await plane.hub.delete("job")
    plane.clock.advance(1)
    await plane.create()
    await plane.passes()
    order = await plane.gateway.next_order(job, "algo-2", after=0, wait_s=60)
    assert order.kind is OrderKind.RELEASE


async def test_repeated_lines_are_stored_once_and_their_metrics_are_counted_once(plane):
    agent = plane.agent()
    assert (await agent.send_logs(batch(plane, 3.0, None))).next_sequence == 2
    assert (await agent.send_logs(batch(plane, 3.0, None))).next_sequence == 2
    longer = LogBatch(first_sequence=0, blocks=(*batch(plane, 3.0, None).blocks, *batch(plane, 1.0, first=2).blocks))
    assert (await agent.send_logs(longer)).next_sequence == 3
    assert await losses_of(plane) == [3.0, 1.0]
    page = await plane.logs.get_events((await plane.job()).log_streams[0], from_head=True)
    assert [event.message for event in page.events] == ["line 0", "line 1", "line 2"]
    assert [(metric.name, metric.value) for metric in (await plane.job()).final_metrics] == [("loss", 1.0)]


async def test_concurrent_copies_of_a_batch_count_once(plane):
    agent = plane.agent()
    await asyncio.gather(*(agent.send_logs(batch(plane, 2.0)) for _ in range(4)))
    assert await losses_of(plane) == [2.0]


async def test_metrics_that_could_not_be_stored_are_stored_from_the_repeated_batch(plane, monkeypatch):
    agent = plane.agent()
    add_metrics = plane.store.add_metrics

    async def failing(name, values):
        monkeypatch.setattr(plane.store, "add_metrics", add_metrics)
        raise StoreError("the database is locked")

    monkeypatch.setattr(plane.store, "add_metrics", failing)
    with pytest.raises(StoreError):
        await agent.send_logs(batch(plane, 4.0))
    await agent.send_logs(batch(plane, 4.0))
    assert await losses_of(plane) == [4.0]


async def test_metrics_are_not_counted_again_after_a_restart_of_the_service(plane, tmp_path):
    await plane.agent().send_logs(batch(plane, 5.0))
    resent = batch(plane, 5.0)
    await plane.logs.close()
    async with ControlPlane.open(tmp_path, clock=plane.clock, engine=plane.engine) as again:
        await again.agent().send_logs(resent)
        assert await losses_of(again) == [5.0]


class Killed(BaseException):
    """A crash of the service at this point, which no handler catches."""


@pytest.mark.parametrize("place", ["store.add_metrics", "hub.record_metrics"])
async def test_a_service_killed_between_lines_and_their_metrics_counts_metrics_once(
    plane, tmp_path, monkeypatch, place
):
    sent = batch(plane, 5.0, None, 4.0, 4.0)

    async def killed(*_):
        raise Killed

    await plane.agent().send_logs(batch(plane, 6.0, first=0))
    owner, _, act = place.partition(".")
    monkeypatch.setattr(getattr(plane, owner), act, killed)
    later = replace(sent, first_sequence=1)
    with pytest.raises(Killed):
        await plane.agent().send_logs(later)
    await plane.logs.close()
    async with ControlPlane.open(tmp_path, clock=plane.clock, engine=plane.engine) as again:
        await again.agent().send_logs(later)
        assert [metric.value for metric in (await again.job()).final_metrics] == [4.0]
        longer = replace(later, blocks=(*later.blocks, *batch(plane, 3.0).blocks))
        for _ in range(2):
            await again.agent().send_logs(longer)
        assert sorted(await losses_of(again)) == [3.0, 4.0, 4.0, 5.0, 6.0]
        assert [metric.value for metric in (await again.job()).final_metrics] == [3.0]


async def test_a_gap_in_the_lines_is_answered_with_the_expected_number(plane):
    receipt = await plane.agent().send_logs(batch(plane, 1.0, first=7))
    assert receipt.next_sequence == 0
    assert await losses_of(plane) == []


async def test_the_tenth_host_s_lines_do_not_go_to_the_first_host_s_stream(tmp_path):
    (tmp_path / "ten").mkdir()
    async with ControlPlane.open(tmp_path / "ten") as plane:
        plane.admission._capacity = type(plane.admission._capacity)(
            max_hosts=20, num_gpus=0, memory_per_host_bytes=1 << 30, memory_bytes=1 << 50
        )
        await plane.create(num_hosts=11)
        await plane.passes()
        for host in ("algo-10", "algo-1"):
            words = LogBatch(first_sequence=0, blocks=(line(f"from {host}", at=plane.clock.now()),))
            await plane.agent(host=host).send_logs(words)
        for stream in (await plane.job()).log_streams:
            events = (await plane.logs.get_events(stream, from_head=True)).events
            host = stream.split("/")[1].rpartition("-")[0]
            assert [event.message for event in events] == ([f"from {host}"] if host in ("algo-1", "algo-10") else [])


async def test_the_final_metric_is_the_latest_in_time_in_any_order_of_arrival(plane):
    now = plane.clock.now()
    values = [FinalMetric(name="loss", value=value, at=now + timedelta(seconds=value)) for value in (2, 3, 1)]
    for value in values:
        await plane.hub.record_metrics("job", [value])
    assert (await plane.job()).final_metrics == (values[1],)


async def test_a_job_s_record_holds_a_limited_number_of_metrics(plane):
    now = plane.clock.now()
    values = [FinalMetric(name=f"m{index}", value=index, at=now) for index in range(100)]
    await plane.hub.record_metrics("job", values)
    assert len((await plane.job()).final_metrics) == MAX_FINAL_METRICS


async def test_metrics_of_a_deleted_job_are_refused(plane):
    await plane.hub.delete("job")
    with pytest.raises(JobNotFound):
        await plane.hub.record_metrics("job", [FinalMetric(name="m", value=1, at=plane.clock.now())])


async def test_a_stall_of_the_service_does_not_count_as_silence_of_its_hosts(plane):
    agent = plane.agent()
    await agent.report(HostPhase.PREPARING)
    job = await plane.job()
    listening = asyncio.create_task(plane.gateway.keep_listening())
    await asyncio.sleep(0)
    plane.clock.advance(30)  # the event loop did not run in these seconds
    silent_s = plane.gateway.silent_s(job)
    assert max(silent_s.values()) < 1
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    plane.clock.advance(30)
    assert min(plane.gateway.silent_s(job).values()) >= 30


async def test_the_last_sign_of_a_host_is_its_last_report_despite_a_stall_of_the_service(plane):
    agent = plane.agent()
    await agent.report(HostPhase.PREPARING)
    told_at = plane.clock.now()
    listening = asyncio.create_task(plane.gateway.keep_listening())
    await asyncio.sleep(0)
    plane.clock.advance(30)  # the event loop did not run in these seconds
    await plane.gateway.next_order(await plane.job(), "algo-1", after=0, wait_s=0)
    signs = plane.gateway.last_signs(await plane.job())
    assert signs == {"algo-1": told_at - timedelta(seconds=HEARTBEAT_INTERVAL_S)}
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)


async def test_silence_counts_from_the_moment_at_which_the_service_listens(plane):
    agent = plane.agent()
    await agent.report(HostPhase.PREPARING)
    plane.clock.advance(30)  # the remaining time of a slow start
    listening = asyncio.create_task(plane.gateway.keep_listening())
    await asyncio.sleep(0)
    assert set(plane.gateway.silent_s(await plane.job()).values()) == {0.0}
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)


async def test_a_host_whose_report_is_being_stored_is_not_silent(plane, monkeypatch):
    agent = plane.agent()
    job = await plane.job()
    apply = plane.hub.apply
    silent_s = []

    async def slow_disk(*arguments):
        plane.clock.advance(30)
        silent_s.append(plane.gateway.silent_s(job)["algo-1"])
        return await apply(*arguments)

    monkeypatch.setattr(plane.hub, "apply", slow_disk)
    await agent.report(HostPhase.PREPARING)
    assert silent_s == [0.0]
    assert plane.gateway.silent_s(job)["algo-1"] == 0.0
    plane.clock.advance(2)
    assert plane.gateway.silent_s(job)["algo-1"] == 2.0


async def test_a_batch_of_more_lines_than_an_agent_sends_is_refused(plane):
    words = LogBatch(first_sequence=0, blocks=(LogBlock(at_ms=1, text="\n" * MAX_BATCH_LINES),))
    with pytest.raises(WireError, match="at most 65536 lines"):
        await plane.agent().send_logs(words)
    fewer = LogBatch(first_sequence=0, blocks=(LogBlock(at_ms=1, text="\n" * (MAX_BATCH_LINES - 1)),))
    assert (await plane.agent().send_logs(fewer)).next_sequence == MAX_BATCH_LINES
