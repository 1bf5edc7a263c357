"""Items wait in order under unique numbers, and each is acknowledged or counted as dropped."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from clary.agent.outbox import Outbox

ROOM = 5


def outbox_of(num_items: int, *, max_bytes: int = 1000) -> Outbox[int]:
    outbox = Outbox[int](size_of=lambda item: 1, max_bytes=max_bytes)
    for item in range(num_items):
        outbox.append(item)
    return outbox


def oldest(outbox: Outbox[int], max_items: int = 1000):
    return outbox.oldest(max_items=max_items, weight_of=lambda item: 1, max_weight=1000)


def test_surplus_items_are_dropped_oldest_first_and_counted():
    stretch = oldest(outbox_of(100, max_bytes=10))
    assert (stretch.first, stretch.items, stretch.num_dropped) == (90, tuple(range(90, 100)), 90)


def test_an_item_larger_than_the_outbox_is_dropped():
    outbox = outbox_of(3, max_bytes=0)
    assert (outbox.first, outbox.end, outbox.num_dropped) == (3, 3, 3)


def test_stale_items_are_dropped_when_a_newer_item_is_added():
    outbox = Outbox[int](size_of=lambda item: 1, max_bytes=100, is_stale=lambda old, new: new - old > 2)
    for item in (0, 1, 2, 3, 4):
        outbox.append(item)
    assert oldest(outbox).items == (2, 3, 4)
    assert outbox.num_dropped == 2


def test_a_stretch_holds_one_item_however_heavy_and_others_within_both_bounds():
    outbox = Outbox[int](size_of=lambda item: 1, max_bytes=100)
    for item in (90, 1, 2, 3, 4):
        outbox.append(item)
    assert outbox.oldest(max_items=9, weight_of=int, max_weight=5).items == (90,)
    outbox.acknowledge(1)
    assert outbox.oldest(max_items=9, weight_of=int, max_weight=5).items == (1, 2)
    assert outbox.oldest(max_items=1, weight_of=int, max_weight=5).items == (1,)


def test_dropped_items_are_counted_and_acknowledged_items_are_not():
    outbox = outbox_of(10)
    outbox.acknowledge(3)
    outbox.give_up(5)
    outbox.give_up(2)
    assert (outbox.first, outbox.end, outbox.num_dropped) == (5, 10, 2)


def test_acknowledgements_may_skip_ahead_and_never_move_back():
    outbox = outbox_of(3)
    outbox.acknowledge(50)
    assert (outbox.first, outbox.end) == (50, 50)
    outbox.append(7)
    outbox.acknowledge(1)
    assert (oldest(outbox).first, oldest(outbox).items) == (50, (7,))


@dataclass
class Receiver:
    """Stores each item once, as the service does, and survives its own restart."""

    next: int = 0
    stored: list[int] = field(default_factory=list)
    num_dropped: int = 0

    def take(self, first: int, items: tuple[int, ...], num_dropped: int) -> int:
        self.stored += items[max(0, self.next - first) :]
        self.next = max(self.next, first + len(items))
        self.num_dropped = num_dropped
        return self.next


acts = st.one_of(
    st.just("append"),
    st.tuples(st.sampled_from(["delivered", "request lost", "answer lost", "refused", "late"]), st.integers(1, 4)),
)


@given(st.lists(acts, max_size=80))
def test_items_arrive_in_order_and_at_most_once_and_the_missing_ones_are_counted(script):
    outbox, receiver = outbox_of(0, max_bytes=ROOM), Receiver()
    num_appended, refused, earlier = 0, set(), []
    for act in script:
        if act == "append":
            assert outbox.end == num_appended
            outbox.append(num_appended)
            num_appended += 1
            continue
        fate, max_items = act
        stretch = oldest(outbox, max_items)
        assert len(stretch.items) <= ROOM
        if not stretch.items or fate == "request lost":
            continue
        if fate == "refused":
            outbox.give_up(stretch.first + len(stretch.items))
            refused.update(stretch.items)
            continue
        if fate == "late" and earlier:  # an earlier request that was delayed in a queue arrives after later ones
            receiver.take(*earlier[0])
        earlier.append((stretch.first, stretch.items, stretch.num_dropped))
        wanted = receiver.take(*earlier[-1])
        if fate != "answer lost":  # otherwise the sender or the connection was killed between storing and acknowledging
            outbox.acknowledge(wanted)
    while (stretch := oldest(outbox)).items:
        outbox.acknowledge(receiver.take(stretch.first, stretch.items, stretch.num_dropped))
    assert receiver.stored == sorted(set(receiver.stored))
    missing = set(range(num_appended)) - set(receiver.stored)
    assert len(missing) <= outbox.num_dropped, "what did not arrive is counted"
    assert outbox.first == outbox.end == num_appended
    if num_appended <= ROOM:
        assert missing <= refused, "within the bound only what is refused is lost"
