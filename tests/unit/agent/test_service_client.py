from __future__ import annotations

import signal
import socket
import threading
import time
from datetime import UTC, datetime

import pytest

from clary.agent.service_client import (
    AgentAddress,
    AttemptOver,
    BackOff,
    ServiceClient,
    ServiceRefused,
    ServiceUnreachable,
)
from clary.contract.agent_protocol import HostFacts, HostPhase, LogBatch, LogBlock, OrderKind, Report
from clary.testing.fake_service import FakeService
from clary.testing.launch_plans import make_plan


@pytest.fixture
def service():
    with FakeService(make_plan()) as service:
        yield service


@pytest.fixture
def client_of():
    clients = []

    def build(service: FakeService, **changes: object) -> ServiceClient:
        fields = {"service_url": service.url, "job": service.plan.job_name, "attempt": 1, "host": "algo-1", **changes}
        token = fields.pop("token", service.token)
        clients.append(ServiceClient(AgentAddress(**fields), token=token))
        return clients[-1]

    yield build
    for client in clients:
        client.close()


def report(number: int = 1) -> Report:
    return Report(number=number, facts=HostFacts(phase=HostPhase.PREPARING, phase_started_at=datetime.now(UTC)))


def batch(first_sequence: int, *texts: str) -> LogBatch:
    lines = tuple(LogBlock(at_ms=1, text=text) for text in texts)
    return LogBatch(first_sequence=first_sequence, blocks=lines)


def test_reports_arrive_unchanged(service: FakeService, client_of) -> None:
    client = client_of(service)
    assert client.fetch_assignment() == service.plan
    sent = report(7)
    assert client.report(sent).accepted
    assert service.reports == [sent]
    assert client.send_logs(client.encode_logs(batch(0, "one", "zw\u00f6lf \U0001f600"))).next_sequence == 2
    assert service.texts == ["one", "zw\u00f6lf \U0001f600"]


def test_an_order_arrives_at_once_and_only_once(service: FakeService, client_of) -> None:
    client = client_of(service)
    threading.Timer(0.05, service.order, [OrderKind.STOP], {"grace_s": 3.5, "reason": "why"}).start()
    started_s = time.monotonic()
    order = client.next_order(0, wait_s=20.0)
    assert time.monotonic() - started_s < 10.0
    assert (order.number, order.kind, order.grace_s, order.reason) == (1, OrderKind.STOP, 3.5, "why")
    assert client.next_order(order.number, wait_s=0.01) is None


def test_the_client_reconnects_to_a_service_that_is_back(service: FakeService, client_of) -> None:
    client = client_of(service)
    client.report(report(1))
    service.kill()
    with pytest.raises(ServiceUnreachable, match="is it running"):
        client.report(report(2))
    service.restart()
    client.report(report(3))
    assert [item.number for item in service.reports] == [1, 3]


def test_a_restart_between_two_requests_is_not_noticed(service: FakeService, client_of) -> None:
    client = client_of(service)
    client.report(report(1))
    service.kill()
    service.restart()
    client.report(report(2))
    assert [item.number for item in service.reports] == [1, 2]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (410, AttemptOver),
        (403, ServiceRefused),
        (404, ServiceRefused),
        (429, ServiceUnreachable),
        (503, ServiceUnreachable),
    ],
)
def test_http_statuses_have_their_meaning(service: FakeService, client_of, status: int, error: type) -> None:
    service.fail("reports", status=status)
    client = client_of(service)
    with pytest.raises(error, match=f"POST reports: the service answered HTTP {status}"):
        client.report(report())
    assert client.report(report()).accepted


def test_a_wrong_token_is_refused_and_never_shown(service: FakeService, client_of) -> None:
    with pytest.raises(ServiceRefused) as caught:
        client_of(service, token="wrong-and-secret").fetch_assignment()
    assert "wrong-and-secret" not in str(caught.value)


def test_another_thread_can_end_the_wait_for_an_order(service: FakeService, client_of) -> None:
    client = client_of(service)
    threading.Timer(0.05, client.break_off).start()
    started_s = time.monotonic()
    with pytest.raises(ServiceUnreachable):
        client.next_order(0, wait_s=20.0)
    assert time.monotonic() - started_s < 10.0


def test_a_signal_handler_breaks_off_calls_inside_of_the_holder_of_their_lock(service: FakeService, client_of) -> None:
    client = client_of(service)
    connection = client._connections[0]

    def handler(*_):
        client.break_off()

    before = signal.signal(signal.SIGUSR2, handler)
    try:
        with connection._lock:  # held for a moment, as during a call
            signal.raise_signal(signal.SIGUSR2)
            signal.raise_signal(signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    with pytest.raises(ServiceUnreachable):
        client.fetch_assignment()


def test_responses_of_another_server_count_as_an_unreachable_service(client_of) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for _ in range(1):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>")

        thread = threading.Thread(target=answer)
        thread.start()
        address = AgentAddress(
            service_url=f"http://127.0.0.1:{listener.getsockname()[1]}", job="j", attempt=1, host="algo-1"
        )
        client = ServiceClient(address, token="t")
        with pytest.raises(ServiceUnreachable, match="expected JSON"):
            client.report(report())
        client.close()
        thread.join()


def test_pauses_grow_to_a_cap_and_start_again() -> None:
    back_off = BackOff(first_s=0.1, cap_s=1.0)
    pauses = [back_off.next_s() for _ in range(10)]
    assert 0.05 <= pauses[0] <= 0.1
    assert all(0.5 <= pause <= 1.0 for pause in pauses[4:])
    back_off.reset()
    assert back_off.next_s() <= 0.1
