from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.agent.log.ansi_filter import AnsiFilter
from clary.agent.log.log_lines import LineSplitter


def filtered(*chunks: bytes) -> bytes:
    ansi = AnsiFilter()
    return b"".join([*map(ansi.feed, chunks), ansi.finish()])


@pytest.mark.parametrize(
    "sequence",
    [
        b"\x1b[0m",
        b"\x1b[38;2;255;100;0m",
        b"\x1b[K",
        b"\x1b[?25l",
        b"\x1b[A",
        b"\x1b(B",
        b"\x1b7",
        b"\x1bM",
        b"\x1b]0;title \xc3\xa4\x07",
        b"\x1b]8;;https://example.org/\x1b\\",
        b"\x1bP1$r0m\x1b\\",
    ],
)
def test_sequences_are_removed_and_the_text_around_them_is_kept(sequence: bytes) -> None:
    text = b"a" + sequence + b"\xc3\xa4" + sequence + b"b\n"
    assert filtered(text) == b"a\xc3\xa4b\n"
    assert filtered(*(text[at : at + 1] for at in range(len(text)))) == b"a\xc3\xa4b\n"


@pytest.mark.parametrize("text", [b"\x1b]0;no end\nnext\n", b"\x1b[1\n", b"\x1b", b"\x1b[" + b"1" * 100, b"[0m \xff"])
def test_an_incomplete_sequence_is_text(text: bytes) -> None:
    assert filtered(text) == text


@given(st.lists(st.text("\x1b[]P;0m\\\x07 (B\nx", max_size=8).map(str.encode), max_size=12))
def test_the_chunking_of_bytes_makes_no_difference(chunks: list[bytes]) -> None:
    assert filtered(*chunks) == filtered(b"".join(chunks))


def test_the_withheld_text_is_bounded() -> None:
    ansi = AnsiFilter()
    data = b"\x1b]" + b"x" * 100_000
    out = b"".join(ansi.feed(data[at : at + 1000]) for at in range(0, len(data), 1000))
    assert out + ansi.finish() == data
    assert len(out) > 90_000


def test_a_coloured_bar_is_shown_without_its_colours_and_erasures() -> None:
    splitter = LineSplitter(strips_ansi=True)
    lines = splitter.feed(b"\r\x1b[32m 50%\x1b[0m\r\x1b[32m100%\x1b[0m\r\x1b[K\nend\x1b", 0.0)
    assert lines == ["100%"]
    assert splitter.finish() == ["end\x1b"]
