"""Long parameters of tests have short names, which are still distinct."""

from short_names import LONGEST, pytest_make_parametrize_id


def test_long_texts_and_bytes_have_distinct_short_names() -> None:
    values = ["x" * 300_000, "x" * 299_999, b"\0" * 5000, "\ud800" * 100, "é" * 61]
    names = [pytest_make_parametrize_id(value) for value in values]
    assert len(set(names)) == len(values)
    assert all(name is not None and len(name) < 4 * LONGEST for name in names)


def test_short_texts_and_other_types_keep_pytest_s_names() -> None:
    assert [pytest_make_parametrize_id(value) for value in ("x" * LONGEST, b"ab", 7, None, [])] == [None] * 5
