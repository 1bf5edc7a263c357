"""Forms as they arrive: in pieces of any size, too large, truncated, and hand-written by hostile clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.base.errors import WireError
from clary.control.objects.forms.form_data import MAX_FORM_BYTES, FormReader, boundary_of

BOUNDARY = b"xyz"


def part(head: str, content: bytes) -> bytes:
    return b"--xyz\r\nContent-Disposition: form-data; " + head.encode() + b"\r\n\r\n" + content + b"\r\n"


def field(name: str, value: str = "v") -> bytes:
    return part(f'name="{name}"', value.encode())


def file(content: bytes, name: str = "f.txt") -> bytes:
    return part(f'name="file"; filename="{name}"', content)


def read(body: bytes, *, size: int = 7) -> tuple[dict[str, str], str, bytes]:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    async def run() -> tuple[dict[str, str], str, bytes]:
        form = FormReader(pieces(), BOUNDARY)
        fields = await form.read_fields()
        content = b"".join([piece async for piece in form.read_file()])
        await form.skip_rest()
        return fields, form.file_name, content

    return asyncio.run(run())


def refusal(body: bytes, *, size: int = 7) -> str:
    with pytest.raises(WireError) as error:
        read(body, size=size)
    assert error.value.http_status == 400
    return error.value.code


@given(content=st.binary(max_size=300), size=st.integers(1, 60))
def test_a_file_is_read_unchanged_whatever_the_sizes_of_the_pieces(content, size):
    body = field("Key", "a/${filename}") + file(content) + b"--xyz--\r\n"
    if b"\r\n--xyz" in content:
        return
    assert read(body, size=size) == ({"key": "a/${filename}"}, "f.txt", content)


def test_a_file_that_contains_parts_of_the_boundary_is_read_whole():
    content = b"\r\n--xy\r\n--\r\n\r\n--xyY--xyz"
    for size in range(1, 40):
        assert read(field("key") + file(content) + b"--xyz--", size=size)[2] == content


def test_fields_after_the_file_are_not_read():
    assert read(field("key") + file(b"x") + field("submit", "Go") + b"--xyz--")[0] == {"key": "v"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [(r"C:\\docs\\a.txt", "a.txt"), ("../../etc/passwd", "passwd"), ('a\\"b', 'a"b'), ("", "")],
)
def test_folders_are_removed_from_the_name_of_a_file(name, expected):
    assert read(field("key") + file(b"x", name) + b"--xyz--")[1] == expected


def test_a_file_name_in_the_extended_form_of_rfc_5987_is_read():
    body = part("name=file; filename=plain; filename*=UTF-8''a%2Fna%C3%AFve", b"x") + b"--xyz--"
    assert read(body)[1] == "naïve"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "IncompleteBody"),
        (b"--xyz", "IncompleteBody"),
        (b"--xyz--", "InvalidArgument"),
        (b"hello\r\n--xyz\r\n", "MalformedPOSTRequest"),
        (b"--xyzz\r\n", "MalformedPOSTRequest"),
        (b"--xyz\r\n\r\n\r\nv\r\n--xyz--", "MalformedPOSTRequest"),
        (part("filename=a", b"v") + b"--xyz--", "MalformedPOSTRequest"),
        (part("name=key", b"\xff") + b"--xyz--", "MalformedPOSTRequest"),
        (field("key") + field("KEY", "w") + file(b"x") + b"--xyz--", "InvalidArgument"),
        (field("key") + b"--xyz--", "InvalidArgument"),
        (b"".join(field(f"f{i}") for i in range(101)) + file(b"x"), "InvalidArgument"),
        (field("key", "v" * (MAX_FORM_BYTES + 100)), "MaxPostPreDataLengthExceeded"),
        (b"--xyz\r\n" + b"A: b\r\n" * MAX_FORM_BYTES, "MaxPostPreDataLengthExceeded"),
        (field("key") + file(b"x" * 50)[:-10], "IncompleteBody"),
    ],
)
def test_a_body_that_is_no_form_is_refused_with_its_code(body, code):
    assert refusal(body, size=64) == code


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("multipart/form-data; boundary=abc", b"abc"),
        ('multipart/form-data; charset=utf-8; boundary="a b;c"', b"a b;c"),
        ("multipart/form-data; Boundary=abc; x=y", b"abc"),
    ],
)
def test_the_boundary_is_read_from_the_content_type(content_type, expected):
    assert boundary_of(content_type) == expected


@pytest.mark.parametrize(
    "content_type", ["multipart/form-data", "multipart/form-data; boundary=", "x; boundary=\u00e4"]
)
def test_a_content_type_without_a_boundary_is_refused(content_type):
    with pytest.raises(WireError, match="boundary"):
        boundary_of(content_type)
