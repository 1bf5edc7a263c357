"""HTTP heads from untrusted clients are parsed in time proportional to their length."""

import time

import pytest

from clary.control.egress.heads import BadHead, answer_head, read_request

MAX_READ_S = 1.0  # a pattern that matches the same blanks in two ways takes hours
LENGTH = 16_000  # about the longest head that the proxy accepts


@pytest.mark.parametrize("blanks", [" " * LENGTH, "\t" * LENGTH, " \t" * (LENGTH // 2)])
@pytest.mark.parametrize("end", ["\x01", "", "x"])
def test_a_header_of_blanks_is_parsed_at_once(blanks, end):
    started_s = time.monotonic()
    for read, first in ((read_request, "GET http://a/ HTTP/1.1"), (answer_head, "HTTP/1.1 200 OK")):
        head = f"{first}\r\na:{blanks}{end}\r\n\r\n".encode()
        if end == "\x01":
            with pytest.raises(BadHead, match="Name: value"):
                read(head)
        else:
            read(head)
    assert time.monotonic() - started_s < MAX_READ_S


def test_blanks_around_a_value_are_no_part_of_it():
    asked = read_request(b"GET http://a/ HTTP/1.1\r\nA: \t b c \t\r\nB:\r\nC:d\r\n\r\n")
    assert asked.fields == (("A", "b c"), ("B", ""), ("C", "d"))
