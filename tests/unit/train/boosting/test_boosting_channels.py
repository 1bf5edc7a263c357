"""Channels of the built-in XGBoost: content types, input modes and files."""

import pytest

from clary.train.boosting.channels import data_files, read_channels
from clary.train.boosting.content_types import DataFormat, parse_content_type
from clary.train.boosting.errors import UserMistake


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, DataFormat.LIBSVM),
        ("", DataFormat.LIBSVM),
        ("libsvm", DataFormat.LIBSVM),
        ("text/x-libsvm", DataFormat.LIBSVM),
        ("text/libsvm ;charset=utf8", DataFormat.LIBSVM),
        ("csv", DataFormat.CSV),
        ("Text/CSV; label_size=1", DataFormat.CSV),
        ("application/x-parquet", DataFormat.PARQUET),
    ],
)
def test_content_types_name_a_format(text, expected):
    assert parse_content_type(text) is expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("application/x-recordio-protobuf", "recordio-protobuf is not offered here"),
        ("image/png", "expected one of csv, text/csv, libsvm"),
        ("text/csv;label_size=0", "label_size must be 1"),
    ],
)
def test_other_content_types_are_refused(text, words):
    with pytest.raises(UserMistake, match="ContentType") as caught:
        parse_content_type(text)
    assert words in str(caught.value)


def test_the_format_of_the_training_channel_holds_for_both():
    found = read_channels({"train": {"ContentType": "text/csv"}, "validation": {"ContentType": "libsvm"}, "code": {}})
    assert (found.data_format, found.has_validation) == (DataFormat.CSV, True)
    assert "channel 'validation' has ContentType 'libsvm', but is read as CSV" in found.notes[0]
    assert read_channels({"train": {}}).notes == ()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "needs a channel 'train'; InputDataConfig has: none"),
        ({"training": {}}, "needs a channel 'train'; InputDataConfig has: training"),
        ({"train": {}, "test": {}}, "takes the channels 'train' and 'validation', got 'test'"),
        ({"train": {"TrainingInputMode": "Pipe"}}, "channel 'train' has the input mode Pipe"),
    ],
)
def test_channels_that_the_algorithm_cannot_read_are_refused(config, words):
    with pytest.raises(UserMistake) as caught:
        read_channels(config)
    assert words in str(caught.value)


def test_files_of_all_folders_are_read_except_hidden_and_empty_ones(tmp_path):
    for name in ("b.csv", "a/part-1", "a/.hidden", ".cache/x", "_SUCCESS"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("1,2\n")
    (tmp_path / "empty.csv").touch()
    assert [str(path.relative_to(tmp_path)) for path in data_files(tmp_path)] == ["a/part-1", "b.csv"]
