"""Notes are grouped by subject and bounded."""

from clary.agent.notes import NoteBook


def test_remarks_on_one_subject_make_one_line():
    notes = NoteBook()
    notes.add("skipped", "a")
    notes.add("said once")
    notes.add("skipped", "b")
    assert notes.lines() == ("skipped: a, b", "said once")


def test_many_names_are_counted_and_long_ones_cut():
    notes = NoteBook()
    for number in range(1000):
        notes.add("skipped", f"{number}" + "x" * 1000)
    (line,) = notes.lines()
    assert line.endswith(" and 992 more")
    assert len(line) < 2000


def test_names_that_are_no_text_can_be_sent_as_json():
    notes = NoteBook()
    notes.add("odd", "raw\udcff")
    assert notes.lines()[0].encode() == b"odd: raw\\udcff"
