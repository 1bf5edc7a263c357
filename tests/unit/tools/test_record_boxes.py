"""A recorded terminal session as an asciicast and as an animation."""

import json
import xml.etree.ElementTree as ET

from tools.record_boxes import COLUMNS, ROWS, Said, cast_of, lines_of, svg_of

SET = "{http://www.w3.org/2000/svg}set"
TEXT = "{http://www.w3.org/2000/svg}text"


def test_lines_have_the_time_of_their_end_and_no_control_characters():
    said = [Said(0.5, "$ clary"), Said(0.7, " up\r\nready \x1b[32mnow\x1b[0m\r\n10%\r20%"), Said(1.5, "\rdone\r\nopen")]
    assert lines_of(said) == [Said(0.7, "$ clary up"), Said(0.7, "ready now"), Said(1.5, "done")]


def test_lines_that_are_too_long_are_cut_at_the_width_of_the_terminal():
    found = lines_of([Said(1.0, "a" * COLUMNS + "b\r\n\r\n")])
    assert [line.text for line in found] == ["a" * COLUMNS, "b", ""]


def test_a_cast_has_a_header_and_a_row_for_each_output():
    head, *rows = map(json.loads, cast_of([Said(0.25, "a\r\n"), Said(2.0, "b")], recorded_at=7).splitlines())
    assert (head["version"], head["width"], head["height"], head["timestamp"]) == (2, COLUMNS, ROWS, 7)
    assert rows == [[0.25, "o", "a\r\n"], [2.0, "o", "b"]]


def test_an_animation_shows_each_line_from_its_time_on_and_scrolls_what_does_not_fit():
    root = ET.fromstring(svg_of([Said(number / 2, f"<line> {number}") for number in range(ROWS + 2)]))
    texts = list(root.iter(TEXT))
    assert [text.text for text in texts] == [f"<line> {number}" for number in range(ROWS + 2)]
    assert texts[3].find(SET).get("begin") == "1.50s"
    ups = [move.get("to") for move in root.iter("{http://www.w3.org/2000/svg}animateTransform")]
    assert ups == ["0 -17", "0 -34"]
