"""Pictures are recognised by the content of their files, not by declared types."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.contract.picture_files import MAX_IMAGE_BYTES, MAX_IMAGE_PIXELS, MAX_IMAGE_SIDE, picture_facts


def png(width=3, height=2):
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0) + b"rest"


def gif(width=3, height=2, version=b"89a"):
    return b"GIF" + version + struct.pack("<HH", width, height) + b"\0\0\0;"


def jpeg(width=3, height=2, frame=0xC0, before=b""):
    header = struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\x01\x11\0"
    return b"\xff\xd8" + before + b"\xff" + bytes([frame]) + header + b"\xff\xda\0\x08rest\xff\xd9"


JFIF = b"\xff\xe0\0\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0"
HUFFMAN_TABLE = b"\xff\xc4\0\x05abc"  # its marker lies in the range of frame markers


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (png(), "image/png"),
        (gif(), "image/gif"),
        (gif(version=b"87a"), "image/gif"),
        (jpeg(), "image/jpeg"),
        (jpeg(frame=0xC2, before=JFIF + HUFFMAN_TABLE + b"\xff\xff\xff"), "image/jpeg"),
    ],
)
def test_type_and_size_are_read(data, media_type):
    facts = picture_facts(data)
    assert facts is not None
    assert (facts.media_type, facts.width, facts.height) == (media_type, 3, 2)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"<!doctype html><script>alert(1)</script>",
        b"\x89PNG\r\n\x1a\n<script>",
        png()[:20],
        gif()[:8],
        b"GIF88a" + gif()[6:],
        b"\xff\xd8\xff",
        b"\xff\xd8\xff\xda\0\x08scan before any frame",
        b"\xff\xd8\xff\xe0\0\0" * 9,
        jpeg()[:9],
        b"BM" + b"\0" * 60,
        b"RIFF\0\0\0\0WEBPVP8 ",
    ],
)
def test_other_files_are_no_pictures(data):
    assert picture_facts(data) is None


@pytest.mark.parametrize("make", [png, gif, jpeg])
def test_an_image_too_large_for_a_browser_is_no_picture(make):
    assert picture_facts(make(0, 2)) is None
    assert picture_facts(make(2, 0)) is None
    assert picture_facts(make(MAX_IMAGE_SIDE, MAX_IMAGE_PIXELS // MAX_IMAGE_SIDE)) is not None
    assert picture_facts(make(MAX_IMAGE_SIDE + 1, 1)) is None
    assert picture_facts(make(MAX_IMAGE_SIDE, MAX_IMAGE_PIXELS // MAX_IMAGE_SIDE + 1)) is None


def test_a_file_that_is_too_long_is_no_picture():
    assert picture_facts(png().ljust(MAX_IMAGE_BYTES, b"x")) is not None
    assert picture_facts(png().ljust(MAX_IMAGE_BYTES + 1, b"x")) is None


@given(st.sampled_from([png(), gif(), jpeg(before=JFIF + HUFFMAN_TABLE)]), st.binary(max_size=60), st.integers(0, 60))
def test_reading_any_file_ends_and_its_results_are_bounded(picture, noise, place):
    facts = picture_facts(picture[:place] + noise)
    assert facts is None or facts.width * facts.height <= MAX_IMAGE_PIXELS


@pytest.mark.parametrize("before", [b"", b"\x21\xf9\x04\0\0\0\0\0", b"\x21\xfe\x03abc\x02de\0"])
@pytest.mark.parametrize(("flags", "colors"), [(b"\0", b""), (b"\x91", b"abcdefghijkl")])
def test_a_gif_is_as_large_as_its_first_frame_where_that_is_larger_than_its_screen(before, flags, colors):
    def framed(*frame):
        start = b"GIF89a" + struct.pack("<HH", 3, 2) + flags + b"\0\0" + colors
        return start + before + b"," + struct.pack("<HHHH", *frame) + b"\0;"

    facts = picture_facts(framed(0, 0, 3, 2))
    assert facts is not None
    assert (facts.width, facts.height) == (3, 2)
    assert picture_facts(framed(0, 0, 65_535, 65_535)) is None
    assert picture_facts(framed(65_535, 0, 1, 1)) is None
    assert picture_facts(framed(0, 0, 65_535, 65_535)[:-4]) is not None, "a frame that is cut off is not drawn"
