"""Files of the built-in XGBoost as arrays."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from clary.train.boosting.content_types import DataFormat
from clary.train.boosting.errors import UserMistake
from clary.train.boosting.matrices import read_table, widened
from needs import python_of

SOURCE = Path(__file__).resolve().parents[4] / "src"
PARQUET = """
import sys
from pathlib import Path
import pyarrow
from pyarrow import parquet
from clary.train.boosting.content_types import DataFormat
from clary.train.boosting.errors import UserMistake
from clary.train.boosting.matrices import read_table
path = Path(sys.argv[1])
parquet.write_table(pyarrow.table({"label": [1, 0], "a": [0.5, None], "b": [3, 4]}), path)
table = read_table([path], DataFormat.PARQUET)
print(table.labels.tolist(), table.features.tolist())
parquet.write_table(pyarrow.table({"label": [1], "a": ["x"]}), path)
try:
    read_table([path], DataFormat.PARQUET)
except UserMistake as mistake:
    print(mistake)
"""


def write(folder, *texts):
    paths = []
    for index, text in enumerate(texts):
        paths.append(folder / f"part-{index}")
        paths[-1].write_text(text)
    return paths


@pytest.mark.parametrize("text", ["1,2,3\n0,4,5\n", "1;2;3\r\n0;4;5\r\n", "1\t2\t3\n0\t4\t5", "1 2 3\n0 4 5\n\n"])
def test_csv_has_the_label_first(tmp_path, text):
    table = read_table(write(tmp_path, text), DataFormat.CSV)
    assert table.labels.tolist() == [1, 0]
    assert table.features.tolist() == [[2, 3], [4, 5]]
    assert table.weights is None


def test_csv_of_several_files_may_have_weights(tmp_path):
    table = read_table(write(tmp_path, "1,0.5,3\n", "0,2,5\n"), DataFormat.CSV, has_weights=True)
    assert (table.weights.tolist(), table.features.tolist()) == ([0.5, 2], [[3], [5]])


@pytest.mark.parametrize("mark", [",", ";"])
def test_empty_fields_are_missing_values(tmp_path, mark):
    lines = ["1,,3,", "0,4,,", "1,,,5"]
    table = read_table(write(tmp_path, "\n".join(lines).replace(",", mark) + "\n"), DataFormat.CSV)
    assert table.features.shape == (3, 3)
    assert [[math.isnan(value) for value in row] for row in table.features] == [
        [True, False, True],
        [False, True, True],
        [True, True, False],
    ]


@pytest.mark.parametrize(
    ("texts", "has_weights", "words"),
    [
        (["label,age\n1,2\n"], False, "part-0 is not CSV of numbers: could not convert string 'label'"),
        (["1,2,3\n1,2\n"], False, "the number of columns changed from 3 to 2"),
        (["1,2,3\n", "1,2\n"], False, "part-1 has 2 columns, but part-0 has 3"),
        (["1,2\n"], True, "part-0 has 2 columns: expected the label, the weight and at least one feature"),
        (["1\n"], False, "expected the label and at least one feature"),
    ],
)
def test_csv_that_is_not_rows_of_numbers_is_refused_with_its_file(tmp_path, texts, has_weights, words):
    with pytest.raises(UserMistake) as caught:
        read_table(write(tmp_path, *texts), DataFormat.CSV, has_weights=has_weights)
    assert words in str(caught.value)


def test_libsvm_names_features_weights_and_queries(tmp_path):
    files = write(tmp_path, "1:0.5 qid:3 0:1.5 2:-2 # note\n\n", "0:2 qid:4\n0:1 qid:4 1:7\n")
    table = read_table(files, DataFormat.LIBSVM)
    assert table.labels.tolist() == [1, 0, 0]
    assert table.weights.tolist() == [0.5, 2, 1]
    assert table.groups.tolist() == [3, 4, 4]
    rows = table.features
    assert (rows.shape, rows.values.tolist(), rows.indices.tolist()) == ((3, 3), [1.5, -2, 7], [0, 2, 1])
    assert rows.ends.tolist() == [0, 2, 2, 3]
    assert widened(table, 5).features.shape == (3, 5)
    assert widened(table, 2).features.shape == (3, 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 0:1\n1,2,3\n", "part-0, line 2: expected LABEL INDEX:VALUE INDEX:VALUE, got '1,2,3'"),
        ("1 -1:4\n", "line 1: expected LABEL"),
        ("1 0:x\n", "line 1: expected LABEL"),
        ("1:2 0:1\n1 0:1\n", "1 of 2 rows have a weight: give it to all rows or to none"),
    ],
)
def test_libsvm_of_another_form_is_refused_with_its_line(tmp_path, text, words):
    with pytest.raises(UserMistake) as caught:
        read_table(write(tmp_path, text), DataFormat.LIBSVM)
    assert words in str(caught.value)


def test_a_file_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "x").write_bytes(b"1,2\n\xff\xfe")
    with pytest.raises(UserMistake, match="x is not text in UTF-8: byte 4 is 0xff"):
        read_table([tmp_path / "x"], DataFormat.CSV)


@pytest.mark.needs("sdk3")  # the one environment with pyarrow
def test_parquet_has_the_label_first(tmp_path):
    done = subprocess.run(
        [python_of("sdk3"), "-c", PARQUET, tmp_path / "rows"],
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    table, mistake = done.stdout.splitlines()
    assert table == "[1.0, 0.0] [[0.5, 3.0], [nan, 4.0]]"
    assert mistake.startswith("rows is not Parquet with columns of numbers: could not convert string")


def test_parquet_without_pyarrow_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserMistake, match="Parquet needs the package pyarrow"):
        read_table(write(tmp_path, "x"), DataFormat.PARQUET)
