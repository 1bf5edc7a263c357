from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clary.agent.log.log_lines import BAR_INTERVAL_S, PIECE_BYTES, LineSplitter


def lines_of(*chunks: bytes) -> list[str]:
    splitter = LineSplitter()
    lines = [line for chunk in chunks for line in splitter.feed(chunk, 0.0)]
    return lines + splitter.finish()


def test_lines_are_emitted_when_their_end_arrives() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"loss=0.", 0.0) == []
    assert splitter.feed(b"5\nacc", 1.0) == ["loss=0.5"]
    assert splitter.tick(100.0) == []
    assert splitter.finish() == ["acc"]
    assert splitter.finish() == []


@given(st.lists(st.binary(max_size=20).map(lambda data: data.replace(b"\r", b"")), max_size=20))
def test_the_chunking_of_bytes_makes_no_difference(chunks: list[bytes]) -> None:
    assert lines_of(*chunks) == lines_of(b"".join(chunks))


@given(st.lists(st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]), min_size=1)))
def test_text_survives_unchanged(texts: list[str]) -> None:
    assert lines_of("".join(text + "\n" for text in texts).encode()) == texts


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_no_line_is_ever_empty_or_holds_a_line_end(chunks: list[bytes]) -> None:
    for line in lines_of(*chunks):
        assert line
        assert "\n" not in line
        assert "\0" not in line
        line.encode()


def test_an_empty_line_is_one_space() -> None:
    assert lines_of(b"a\n\nb\n") == ["a", " ", "b"]


def test_windows_line_ends_are_line_ends_even_when_cut_apart() -> None:
    assert lines_of(b"a\r\nb\r", b"\nc\r\n") == ["a", "b", "c"]


def test_a_blank_line_with_a_carriage_return_stays_a_blank_line() -> None:
    assert lines_of(b"\r", b"\n") == [" "]


def test_invalid_utf8_stays_readable_and_nul_is_removed() -> None:
    assert lines_of(b"a\xff\xfe\0b\xc3\n") == ["a\\xff\\xfeb\\xc3"]


def test_a_progress_bar_shows_its_last_state_when_it_ends() -> None:
    assert lines_of(b"\r 10%|#   |\r 50%|##  |\r100%|####|\nnext\n") == ["100%|####|", "next"]


def test_a_moving_progress_bar_is_shown_at_intervals() -> None:
    splitter = LineSplitter()
    shown = []
    for tenth_s in range(200):
        shown += splitter.feed(b"\r%3d%%" % tenth_s, tenth_s / 10)
    assert len(shown) == 20 / BAR_INTERVAL_S
    assert splitter.feed(b"\n", 20.0) == ["199%"]


def test_a_progress_bar_that_does_not_move_is_shown_once() -> None:
    splitter = LineSplitter()
    splitter.feed(b"\r 42%", 0.0)
    assert splitter.tick(BAR_INTERVAL_S / 2) == []
    assert splitter.tick(BAR_INTERVAL_S) == [" 42%"]
    assert splitter.tick(3 * BAR_INTERVAL_S) == []
    assert splitter.feed(b"\n", 4 * BAR_INTERVAL_S) == []


def test_bars_without_end_take_no_memory() -> None:
    splitter = LineSplitter()
    for number in range(10_000):
        splitter.feed(b"\r" + b"x" * 100 + b"%d" % number, 0.0)
    assert splitter.finish() == ["x" * 100 + "9999"]
    assert not splitter.has_cut


def test_a_line_without_end_is_emitted_in_pieces_of_whole_characters() -> None:
    splitter = LineSplitter()
    text = "\u00e4" * PIECE_BYTES
    data = b"a" + text.encode()
    pieces = []
    for start in range(0, len(data), 10_000):
        pieces += splitter.feed(data[start : start + 10_000], 0.0)
    assert splitter.has_cut
    assert pieces
    pieces += splitter.finish()
    assert "".join(pieces) == "a" + text
    assert max(len(piece.encode()) for piece in pieces) <= PIECE_BYTES


def test_a_long_line_that_arrives_whole_is_cut_as_well() -> None:
    splitter = LineSplitter()
    pieces = splitter.feed(("\u20ac" * PIECE_BYTES).encode() + b"\nshort\n", 0.0)
    assert pieces[-1] == "short"
    assert "".join(pieces[:-1]) == "\u20ac" * PIECE_BYTES
    assert max(len(piece.encode()) for piece in pieces) <= PIECE_BYTES
