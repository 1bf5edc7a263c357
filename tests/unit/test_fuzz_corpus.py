"""Regression tests of fuzzing: every stored input passes through its target again, without the fuzzer."""

from __future__ import annotations

import hashlib

import pytest
from fuzz.byte_reader import ByteReader
from fuzz.corpus_files import MAX_FILE_BYTES, MAX_INPUTS, corpus_file, read_corpus, write_corpus
from fuzz.findings import FindingError, require
from fuzz.targets import TARGETS, open_target


@pytest.mark.timeout(
    180
)  # the agents' target writes to a real store for each input; on an idle machine it takes seconds
@pytest.mark.parametrize("target", TARGETS)
def test_every_stored_input_passes_its_target(target):
    inputs = read_corpus(target)
    assert len(inputs) >= 50, f"{corpus_file(target)} holds hardly anything: run `make fuzz`"
    with open_target(target) as run:
        for item in inputs:
            try:
                run(item)
            except Exception as error:
                name = hashlib.sha1(item).hexdigest()
                raise AssertionError(f"input {name} of {target}: {type(error).__name__}: {error}\n{item!r}") from error


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus_of_a_target_stays_small(target):
    assert corpus_file(target).stat().st_size <= MAX_FILE_BYTES
    assert len(read_corpus(target)) <= MAX_INPUTS


def test_a_corpus_is_read_back_and_prefers_short_inputs(tmp_path, monkeypatch):
    monkeypatch.setattr("fuzz.corpus_files.FOLDER", tmp_path)
    monkeypatch.setattr("fuzz.corpus_files.MAX_INPUTS", 3)
    assert write_corpus("x", [b"long" * 9, b"", b"bc", b"\n\xff", b"a", b"a"]) == 3
    assert sorted(read_corpus("x")) == [b"\n\xff", b"a", b"bc"]


def test_exhausted_bytes_choose_the_first_of_all_choices():
    reader = ByteReader(b"\x05\xff")
    assert (reader.choose("abc"), reader.take(9), reader.is_empty) == ("c", b"\xff", True)
    assert (reader.byte(), reader.chance(), reader.choose("abc"), reader.text()) == (0, False, "a", "")


def test_a_finding_names_the_broken_property():
    require(True, "never said")
    with pytest.raises(FindingError, match=r"it broke\n  value: 7"):
        require(False, "it broke", value=7)
