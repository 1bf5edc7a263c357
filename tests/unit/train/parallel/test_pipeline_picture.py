"""Runs of pipelines, and pictures of them."""

import xml.etree.ElementTree as ET

import pytest

from clary.train.parallel.pipeline.picture import COLOURS, svg, text
from clary.train.parallel.pipeline.record import ActionRun, Run, simulated_run
from clary.train.parallel.pipeline.schedule import Kind, parse_action, simulate
from clary.train.parallel.pipeline.schedules import gpipe, one_f_one_b, zb1p
from clary.train.parallel.pipeline.zero_bubble import zbv

SECONDS = {Kind.FORWARD: 1.0, Kind.BACKWARD: 2.0, Kind.INPUT: 1.0, Kind.WEIGHT: 1.0}
SVG = "{http://www.w3.org/2000/svg}"


def seconds_of(action):
    return SECONDS[action.kind]


def simulated(schedule):
    return simulated_run(schedule, simulate(schedule, seconds_of), seconds_of)


def boxes(document, name="action"):
    return [one for one in ET.fromstring(document).iter(f"{SVG}rect") if one.get("class") == name]


def test_a_simulated_run_has_the_times_of_the_simulation():
    for schedule in (gpipe(3, 4), zb1p(3, 4), zbv(3, 4)):
        found, run = simulate(schedule, seconds_of), simulated(schedule)
        assert run.length_s == found.length_s
        assert run.idle == pytest.approx(found.idle)


def test_times_count_from_the_first_begin_over_all_ranks():
    ranks = ((ActionRun(parse_action("0F0"), 5.0, 6.0),), (ActionRun(parse_action("1F0"), 6.5, 7.0),))
    run = Run("short", ranks)
    assert (run.begin_s, run.length_s, run.idle) == (5.0, 2.0, (0.5, 0.75))
    first, second = boxes(svg(run, width=100))
    assert float(second.get("x")) - float(first.get("x")) == 75
    assert [float(one.get("width")) for one in (first, second)] == [50, 25]


def test_the_svg_has_a_box_for_every_action_at_its_time():
    schedule = one_f_one_b(3, 4)
    run = simulated(schedule)
    document = svg(run, width=900)
    scale = 900 / run.length_s
    rows = boxes(document, "row")
    drawn = boxes(document)
    left = float(rows[0].get("x"))
    assert [one.get("y") for one in rows] == sorted({one.get("y") for one in drawn}, key=float)
    expected = [(row, one) for row, actions in zip(rows, run.ranks, strict=True) for one in actions]
    for (row, one), box in zip(expected, drawn, strict=True):
        assert box.get("y") == row.get("y")
        assert float(box.get("x")) == pytest.approx(left + one.begin_s * scale, abs=0.01)
        assert float(box.get("width")) == pytest.approx(seconds_of(one.action) * scale, abs=0.01)
        assert float(box.get("x")) + float(box.get("width")) <= left + 900.02
        assert box.get("fill") == COLOURS[one.action.kind]


def test_the_svg_labels_its_contents():
    words = [one.text for one in ET.fromstring(svg(simulated(zbv(2, 4)))).iter() if one.text]
    assert "zbv: 25 s; paler: later stages of a rank" in words
    assert {"0 ms", "5 s", "25 s"} <= set(words), "times on the axis"
    assert words.count("idle 4.0%") == 2
    assert {"F forward", "I gradient of the input", "W gradients of the weights"} <= set(words)
    assert "B backward" not in words
    assert "3I0 (gradient of the input of stage 3, microbatch 0): 4 s to 5 s" in words
    assert [words.count(str(number)) for number in range(4)] == [12] * 4


def test_later_stages_of_a_rank_are_paler():
    opacities = {box.get("fill-opacity") for box in boxes(svg(simulated(zbv(2, 2))))}
    assert len(opacities) == 2
    assert {box.get("fill-opacity") for box in boxes(svg(simulated(gpipe(2, 2))))} == {"1.00"}


def test_numbers_are_left_out_of_boxes_too_narrow_for_them():
    # 39 units of time on 300 pixels: a forward is 7.7 pixels wide (one digit fits), a backward 15.4 (two digits fit).
    document = ET.fromstring(svg(simulated(gpipe(2, 12)), width=300))
    numbers = [group.find(f"{SVG}text") for group in document.iter(f"{SVG}g")]
    inside = [one.text for one in numbers if one is not None]
    assert inside.count("9") == 4
    assert inside.count("10") == inside.count("11") == 2


def test_text_is_drawn_to_scale():
    assert text(simulated(one_f_one_b(2, 2)), width=36) == "\n".join(
        [
            "1f1b: 9 s",
            "rank 0   |F0--F1--        B0======    B1======| idle 33.3%",
            "rank 1   |    F0--B0======F1--B1======        | idle 33.3%",
        ]
    )


def test_an_empty_run_is_drawn():
    run = Run("nothing", ((),))
    assert run.idle == (1.0,)
    assert boxes(svg(run)) == []
    assert text(run, width=4) == "nothing: 0 ms\nrank 0   |    | idle 100.0%"
