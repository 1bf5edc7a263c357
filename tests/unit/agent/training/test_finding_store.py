"""Pictures have a separate budget: they displace no number, and the last picture of each tag is sent at the end."""

from __future__ import annotations

from clary.agent.training import finding_store
from clary.agent.training.finding_store import FindingStore
from clary.contract.training_values import Finding, FindingKind

PICTURE = "x" * 700  # with the other fields of a finding, 1000 bytes


def image(step, name="sample", data=PICTURE):
    return Finding(kind=FindingKind.IMAGE, name=name, at_ms=0, step=step, data=data)


def steps_of(store):
    return [finding.step for finding in store.batch(None).findings]


def test_pictures_beyond_the_budget_wait_and_the_newest_of_each_tag_is_sent():
    store = FindingStore(picture_burst_bytes=2_000.0, picture_bytes_per_s=100.0)
    for step in range(10):
        store.offer(image(step), now_s=0.0)
    store.offer(image(100, name="other"), now_s=0.0)
    assert steps_of(store) == [0, 1]
    store.admit_waiting(now_s=9.0, is_last=False)
    assert steps_of(store) == [0, 1], "nine tenths of a picture"
    store.admit_waiting(now_s=10.0, is_last=False)
    assert steps_of(store) == [0, 1, 9]
    store.admit_waiting(now_s=20.0, is_last=False)
    store.admit_waiting(now_s=20.0, is_last=False)
    assert steps_of(store) == [0, 1, 9, 100]
    assert store.num_dropped == 7


def test_all_waiting_pictures_are_sent_at_the_end():
    store = FindingStore(picture_burst_bytes=1_000.0, picture_bytes_per_s=0.0)
    for step in range(5):
        store.offer(image(step), now_s=0.0)
        store.offer(image(step, name="other"), now_s=0.0)
    store.admit_waiting(now_s=0.0, is_last=True)
    assert steps_of(store) == [0, 4, 4]
    store.admit_waiting(now_s=0.0, is_last=True)
    assert steps_of(store) == [0, 4, 4], "each once"


def test_waiting_pictures_displace_no_number_even_at_the_end():
    store = FindingStore(max_bytes=6_000, picture_burst_bytes=0.0, picture_bytes_per_s=0.0)
    store.offer(image(99), now_s=0.0)
    for step in range(19):
        store.offer(Finding(name="loss", at_ms=0, step=step), now_s=0.0)
    store.admit_waiting(now_s=0.0, is_last=True)
    assert steps_of(store) == list(range(19))
    store.acknowledge(19)
    store.admit_waiting(now_s=0.0, is_last=True)
    assert (steps_of(store), store.num_dropped) == ([99], 0)


def test_pictures_fill_half_of_the_store_at_most_so_that_no_number_is_pushed_out():
    store = FindingStore(max_bytes=6_000)
    store.offer(Finding(name="loss", at_ms=0, step=0), now_s=0.0)
    for step in range(1, 20):
        store.offer(image(step), now_s=0.0)
    assert steps_of(store) == [0, 1, 2]
    store.acknowledge(3)
    store.offer(image(20), now_s=0.0)
    assert steps_of(store) == [20]


def test_the_number_of_waiting_pictures_is_bounded(monkeypatch):
    monkeypatch.setattr(finding_store, "MAX_WAITING_BYTES", 2_500)
    store = FindingStore(picture_burst_bytes=0.0, picture_bytes_per_s=0.0)
    for number in range(5):
        store.offer(image(number, name=f"tag-{number}"), now_s=0.0)
    store.admit_waiting(now_s=0.0, is_last=True)
    assert steps_of(store) == [0, 1]
    assert store.num_dropped == 3


def test_the_number_of_tags_of_a_host_is_bounded(monkeypatch):
    monkeypatch.setitem(finding_store._MAX_TAGS, FindingKind.IMAGE, 3)
    store = FindingStore()
    for number in range(5):
        store.offer(image(number, name=f"tag-{number}"), now_s=0.0)
        store.offer(Finding(kind=FindingKind.HISTOGRAM, name=f"tag-{number}", at_ms=0, data="[]"), now_s=0.0)
    assert (store.end, store.num_unnamed) == (8, 2)
