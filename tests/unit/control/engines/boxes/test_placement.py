"""The boxes that hosts get, and messages for hosts that wait."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spoken_boxes import GIB, wish

from clary.control.engines.boxes.placement import BoxState, BoxView, fits, gives_way, place
from clary.control.engines.boxes.records import RequestRecord, kind_of


def box(name, num_cpus=8, gib=62, num_gpus=0, state=BoxState.READY, runs=""):
    return BoxView(
        name=name,
        kind=f"{num_cpus}cpu-{gib}gib" + (f"-{num_gpus}gpu" if num_gpus else ""),
        num_cpus=num_cpus,
        memory_bytes=gib * GIB,
        num_gpus=num_gpus,
        state=state,
        runs=runs,
    )


def request(number, *hosts):
    return RequestRecord(number=number, hosts=hosts)


def test_a_host_gets_the_smallest_box_that_fits():
    boxes = [box("gpu", num_gpus=4), box("large", 64, 500), box("small", 4, 8)]
    assert place([request(1, wish(0, num_cpus=4))], boxes).placed == {1: {0: "small"}}
    assert place([request(1, wish(0, num_cpus=5))], boxes).placed == {1: {0: "large"}}
    assert place([request(1, wish(0, num_gpus=1))], boxes).placed == {1: {0: "gpu"}}
    assert place([request(1, wish(0, memory_bytes=9 * GIB))], boxes).placed == {1: {0: "large"}}


def test_only_boxes_of_the_named_kind_are_assigned():
    boxes = [box("b1"), box("b2", 64, 500)]
    assert place([request(1, wish(0, kind="64cpu-500gib"))], boxes).placed == {1: {0: "b2"}}
    boxes = [box("b1"), box("b2", 64, 500, state=BoxState.BUSY, runs="job-7")]
    assert place([request(1, wish(0, kind="64cpu-500gib"))], boxes).waits == {1: "waits for 1 box: b2 runs job-7"}


def test_a_host_of_a_kind_that_no_box_has_any_more_gets_a_box_by_its_resources():
    wanted = wish(0, kind="8cpu-62gib", num_cpus=8)
    assert place([request(1, wanted)], [box("b1", num_gpus=8)]).placed == {1: {0: "b1"}}, "it has found its GPUs"
    wanted = wish(0, kind="8cpu-62gib-8gpu", num_cpus=8, num_gpus=8)
    waits = place([request(1, wanted)], [box("b1")]).waits
    told = "waits for 1 box with 8 CPUs, 8 GPUs: 0 of 1 would do; add more with: clary hosts add USER@BOX"
    assert waits == {1: told}, "it has lost its GPUs"


def test_a_gang_is_placed_whole_or_not_at_all():
    boxes = [box("b1"), box("b2", state=BoxState.DRAINED)]
    outcome = place([request(1, wish(0), wish(1))], boxes)
    assert (outcome.placed, outcome.waits) == ({}, {1: "waits for 2 boxes: b2 is drained"})


def test_a_host_that_fits_anywhere_leaves_the_special_box_to_the_one_that_needs_it():
    boxes = [box("wide", 64, 8), box("deep", 4, 500)]
    hosts = wish(0, num_cpus=1), wish(1, num_cpus=32)
    assert place([request(1, *hosts)], boxes).placed == {1: {0: "deep", 1: "wide"}}


def test_the_first_request_keeps_boxes_that_it_could_use():
    boxes = [box("b1"), box("gpu", num_gpus=1)]
    outcome = place([request(2, wish(0)), request(1, wish(0, num_gpus=1), wish(1, num_gpus=1))], boxes)
    assert outcome.placed == {2: {0: "b1"}}
    assert outcome.waits[1].startswith("waits for 2 boxes with 1 CPUs, 1 GPUs: 1 of 2 would do")
    two_of_three = request(1, wish(0), wish(1), wish(2))
    outcome = place([two_of_three, request(2, wish(0))], [box("b1"), box("b2"), box("b3", state=BoxState.SILENT)])
    assert outcome.placed == {}
    assert outcome.waits[2] == (
        "waits for 1 box: b1 is kept for a job that came first, b2 is kept for a job that came first, b3 is silent"
    )


def test_the_message_names_the_boxes_that_are_waited_for():
    boxes = [
        box("box1", state=BoxState.BUSY, runs="job-7"),
        box("box2", state=BoxState.DRAINED),
        box("box3", state=BoxState.GONE),
    ]
    for order in (boxes, boxes[::-1]):  # in whatever order they joined
        waits = place([request(1, wish(0), wish(1))], order).waits
        assert waits == {1: "waits for 2 boxes: box1 runs job-7, box2 is drained, box3 is being removed"}
    many = [replace(boxes[0], name=f"b{number}") for number in range(9)]
    assert place([request(1, wish(0))], many).waits[1].endswith("b5 runs job-7 and 3 more")
    told = "waits for 1 box with 1 CPUs: there is none; add more with: clary hosts add USER@BOX"
    assert place([request(1, wish(0))], []).waits == {1: told}


def test_kinds_differ_by_the_resources_that_a_job_sees():
    from spoken_boxes import facts

    assert kind_of(facts("a")) == "8cpu-62gib"
    assert kind_of(facts("a", memory_bytes=62 * GIB + GIB // 3)) == "8cpu-62gib"
    assert kind_of(facts("a", gpus=("GPU-1", "GPU-2"))) == "8cpu-62gib-2gpu"


_SIZES = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2))


@given(
    boxes=st.lists(st.tuples(_SIZES, st.sampled_from([BoxState.READY, BoxState.READY, BoxState.BUSY])), max_size=5),
    gangs=st.lists(st.lists(_SIZES, min_size=1, max_size=3), max_size=4),
)
def test_no_box_is_given_twice_none_is_too_small_and_a_lone_gang_that_could_be_placed_is(boxes, gangs):
    views = [box(f"b{number}", *size, state=state) for number, (size, state) in enumerate(boxes)]
    by_name = {view.name: view for view in views}
    requests = [
        request(
            number,
            *(
                wish(index, num_cpus=cpus, memory_bytes=gib * GIB, num_gpus=gpus)
                for index, (cpus, gib, gpus) in enumerate(gang)
            ),
        )
        for number, gang in enumerate(gangs)
    ]
    outcome = place(requests, views)
    assert outcome.placed.keys() | outcome.waits.keys() == {item.number for item in requests}
    assert outcome.placed.keys().isdisjoint(outcome.waits)
    given_out = [name for found in outcome.placed.values() for name in found.values()]
    assert len(given_out) == len(set(given_out))
    for item in requests:
        found = outcome.placed.get(item.number, {})
        assert not found or found.keys() == {host.index for host in item.hosts}
        for host in item.hosts:
            if found:
                assert by_name[found[host.index]].state is BoxState.READY
                assert fits(host, by_name[found[host.index]])
    if requests:
        could = _can_be_placed(requests[0].hosts, [view for view in views if view.state is BoxState.READY])
        assert (requests[0].number in outcome.placed) is could


def _can_be_placed(hosts, boxes):
    """Return whether any assignment of boxes to hosts is possible, by trying all."""
    if not hosts:
        return True
    return any(
        fits(hosts[0], view) and _can_be_placed(hosts[1:], [other for other in boxes if other is not view])
        for view in boxes
    )


@pytest.mark.parametrize("state", [state for state in BoxState if state is not BoxState.READY])
def test_a_box_that_is_not_ready_gets_no_host(state):
    assert place([request(1, wish(0))], [box("b1", state=state)]).placed == {}


def busy(name, **facts):
    return box(name, state=BoxState.BUSY, **facts)


def test_kept_boxes_are_released_if_a_request_then_gets_all_its_boxes():
    kept = {"old": ["b1"], "new": ["b2"]}
    boxes = [busy("b1"), busy("b2"), box("b3")]
    assert gives_way([request(7, wish(0), wish(1))], boxes, kept) == ("old", 7)
    assert gives_way([request(7, wish(0), wish(1), wish(2), wish(3))], boxes, kept) is None
    assert gives_way([], boxes, kept) is None


def test_boxes_that_a_request_could_not_use_stay_kept():
    boxes = [busy("gpu", num_gpus=1), busy("runs"), box("drained", state=BoxState.DRAINED)]
    assert gives_way([request(1, wish(0, num_cpus=64))], boxes, {"old": ["gpu"]}) is None
    assert gives_way([request(1, wish(0, num_gpus=1))], boxes, {"small": ["x"], "old": ["gpu"]}) == ("old", 1)
    assert gives_way([request(1, wish(0))], boxes, {"old": ["drained"]}) is None
