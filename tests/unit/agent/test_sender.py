"""Batches sent to a service that loses requests and responses, dies between them, hangs, refuses, or loses items."""

from __future__ import annotations

import random
import threading
import time

import pytest

from clary.agent.outbox import Outbox
from clary.agent.sender import MOST_VAIN, NotWanted, Parcel, Sender, send_until_taken
from clary.agent.service_client import AttemptOver, BackOff, ServiceRefused, ServiceUnreachable

WAIT_S = 20.0


class FakeService:
    """Stores each item once; `fate` returns the outcome of each request."""

    def __init__(self, fate=lambda: "delivered") -> None:
        self.fate = fate
        self.next = 0
        self.stored: list[int] = []
        self.num_requests = 0

    def send(self, first: int, items: tuple[int, ...]) -> int:
        self.num_requests += 1
        match self.fate():
            case "request lost":
                raise ServiceUnreachable("no route")
            case "refused":
                raise ServiceRefused("bad", details={"status": 400})
            case "unknown":
                raise ServiceRefused("no such request", details={"status": 404})
            case "over":
                raise AttemptOver("over")
            case "forgetful":
                return 0
            case fate:
                self.stored += items[max(0, self.next - first) :]
                self.next = max(self.next, first + len(items))
                if fate == "answer lost":
                    raise ServiceUnreachable("reset by peer")
                return self.next


class NumberSender(Sender):
    """Sends the numbers in an outbox."""

    def __init__(self, service: FakeService, outbox: Outbox[int], *, may_give_up: bool = True) -> None:
        super().__init__(
            "number-sender",
            failure="numbers are not sent",
            what="numbers",
            source=outbox,
            give_up=outbox.give_up if may_give_up else None,
            back_off=BackOff(first_s=0.001, cap_s=0.002),
        )
        self._service, self._outbox = service, outbox

    def _round(self) -> float | None:
        try:
            return self._send_all() or 0.01
        except (AttemptOver, NotWanted):
            return None

    def _parcel(self) -> Parcel | None:
        stretch = self._outbox.oldest(max_items=7, weight_of=lambda item: 1, max_weight=100)
        if not stretch.items:
            return None
        end = stretch.first + len(stretch.items)
        return Parcel(stretch.first, end, lambda: self._service.send(stretch.first, stretch.items))


@pytest.fixture
def sender_of():
    senders = []

    def build(service: FakeService, num_items: int = 0, **options):
        outbox = Outbox[int](size_of=lambda item: 1, max_bytes=10_000)
        for item in range(num_items):
            outbox.append(item)
        senders.append(NumberSender(service, outbox, **options))
        senders[-1].start()
        return senders[-1], outbox

    yield build
    for sender in senders:
        assert sender.close(WAIT_S)


@pytest.mark.parametrize("may_give_up", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_each_item_arrives_once_and_in_order_whatever_is_lost(sender_of, seed, may_give_up):
    chance = random.Random(seed)
    service = FakeService(lambda: chance.choice(["delivered", "request lost", "answer lost"]))
    sender, outbox = sender_of(service, may_give_up=may_give_up)
    for item in range(200):
        outbox.append(item)
    assert sender.wait_sent(200, WAIT_S)
    assert service.stored == list(range(200))
    assert outbox.num_dropped == 0


def test_refused_items_are_dropped_and_counted_and_later_items_arrive(sender_of, caplog):
    fates = iter(["refused", "refused"])
    service = FakeService(lambda: next(fates, "delivered"))
    sender, outbox = sender_of(service, 20)
    assert sender.wait_sent(20, WAIT_S)
    assert (service.stored, outbox.num_dropped) == (list(range(14, 20)), 14)
    assert caplog.text.count("are given up") == 1


def test_items_that_may_not_be_dropped_are_sent_until_accepted(sender_of):
    fates = iter([*["refused"] * 5, *["forgetful"] * 5])
    service = FakeService(lambda: next(fates, "delivered"))
    sender, outbox = sender_of(service, 5, may_give_up=False)
    assert sender.wait_sent(5, WAIT_S)
    assert (service.stored, outbox.num_dropped) == ([0, 1, 2, 3, 4], 0)


def test_a_batch_is_dropped_after_some_requests_without_progress(sender_of):
    service = FakeService(lambda: "forgetful")
    sender, outbox = sender_of(service, 3)
    assert sender.wait_sent(3, WAIT_S)
    assert (service.num_requests, outbox.num_dropped) == (MOST_VAIN, 3)


@pytest.mark.parametrize("fate", ["unknown", "over"])
def test_an_unwanted_sender_stops_and_waits_for_it_end_at_once(sender_of, fate):
    service = FakeService(lambda: fate)
    sender, _ = sender_of(service, 3)
    assert not sender.wait_sent(3, WAIT_S)
    assert sender.join(WAIT_S)
    assert service.num_requests == 1


def test_a_wait_ends_at_its_deadline_unless_it_outlasts_outages(sender_of):
    fate = ["request lost"]
    service = FakeService(lambda: fate[0])
    sender, _ = sender_of(service, 3)
    deadline_s = time.monotonic() + WAIT_S
    while not service.num_requests:
        assert time.monotonic() < deadline_s
    assert not sender.wait_sent(3, 0.05)
    threading.Timer(0.5, lambda: fate.__setitem__(0, "delivered")).start()
    assert sender.wait_sent(3, 0.1, outlasts_outages=True)
    assert service.stored == [0, 1, 2]


def test_a_wait_that_outlasts_outages_ends_if_the_service_accepts_nothing(sender_of):
    sender, _ = sender_of(FakeService(lambda: "refused"), 3, may_give_up=False)
    began_s = time.monotonic()
    assert not sender.wait_sent(3, 0.3, outlasts_outages=True)
    assert 0.3 <= time.monotonic() - began_s < WAIT_S
    assert not sender.wait_sent(3, WAIT_S, outlasts_outages=True, is_vain=lambda: True)


def test_a_message_is_sent_until_accepted_or_the_limit_or_the_senders_end():
    ending, lock, tries = threading.Event(), threading.Lock(), []

    def send() -> None:
        assert lock.locked()
        tries.append(1)
        if len(tries) < 3:
            raise ServiceUnreachable("away")

    assert send_until_taken(send, limit_s=WAIT_S, ending=ending, lock=lock)
    assert len(tries) == 3
    assert not send_until_taken(send, limit_s=0.0, ending=ending, lock=lock)
    ending.set()
    assert not send_until_taken(send, limit_s=WAIT_S, ending=ending, lock=lock)
    assert len(tries) == 3


def test_a_message_that_is_refused_is_an_error_of_its_sender():
    def send() -> None:
        raise ServiceRefused("no", details={"status": 413})

    with pytest.raises(ServiceRefused):
        send_until_taken(send, limit_s=WAIT_S, ending=threading.Event(), lock=threading.Lock())
