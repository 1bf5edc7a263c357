"""Names under which the embedded store keeps the keys that it would take for other keys."""

import itertools
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.contract.object_store import stored_names
from clary.contract.object_store.stored_names import MARK, stored_name, with_keys

KEYS = st.text(st.sampled_from("ab/\\.[Zé"), max_size=12)


@pytest.mark.parametrize(
    ("key", "stored"),
    [
        ("a/b", "a/b"),
        ("a/", "a/"),
        ("", ""),
        ("a//b", f"a/.{MARK}/b"),
        ("/a", f".{MARK}/a"),
        ("//", f".{MARK}/.{MARK}/"),
        ("a\\b", f"a[{MARK}b"),
    ],
)
def test_only_empty_parts_and_backslashes_are_written_otherwise(key, stored):
    assert stored_name(key) == stored


@given(KEYS)
def test_a_document_of_the_store_names_the_keys_again(key):
    for text in (stored_name(key), quote(stored_name(key))):
        expected = key if text == stored_name(key) else quote(key)
        assert with_keys(f"<Key>{text}</Key>".encode()) == f"<Key>{expected}</Key>".encode()


@given(KEYS, KEYS)
def test_two_keys_never_have_one_stored_name_and_no_stored_name_has_an_empty_part(first, second):
    assert (stored_name(first) == stored_name(second)) == (first == second)
    assert "" not in stored_name(first).split("/")[:-1]
    assert "\\" not in stored_name(first)


@given(KEYS, KEYS)
def test_a_key_has_a_prefix_if_its_stored_name_has_the_prefix_s(key, prefix):
    assert key.startswith(prefix) == stored_name(key).startswith(stored_name(prefix))


def test_stored_names_sort_as_the_keys_do():
    keys = ["".join(chars) for size in range(1, 5) for chars in itertools.product("a/\\.[0", repeat=size)]
    by_parts = sorted(keys, key=lambda key: key.encode())
    assert by_parts == sorted(keys, key=lambda key: stored_name(key).encode())


def test_copy_sources_and_queries_name_stored_objects():
    assert stored_names.stored_copy_source("/b/a//c%20d?versionId=1") == f"/b/a/{quote('.' + MARK)}/c%20d?versionId=1"
    query = [("prefix", "a//"), ("delimiter", "/"), ("upload-id-marker", "//")]
    assert stored_names.stored_query(query) == [("prefix", f"a/.{MARK}/"), *query[1:]]
