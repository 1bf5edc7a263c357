"""Files of a channel as arrays: labels, weights, and features.

Text is read here, not by xgboost, which deprecated its readers in 3.1. An empty field of CSV and a feature that a row
of libsvm does not name are missing values, as for xgboost's readers.
"""

from __future__ import annotations

import io
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clary.train.boosting.content_types import DataFormat
from clary.train.boosting.errors import UserMistake

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DELIMITERS = (",", ";", "\t", "|", " ")
_LIBSVM_ROW = re.compile(
    r"(?P<label>[^\s:]+)(?::(?P<weight>[^\s:]+))?(?:\s+qid:(?P<group>\d+))?(?P<features>(?:\s+\S+)*)\s*"
)
_SHOWN = 60  # characters of a line in an error


@dataclass(frozen=True, kw_only=True)
class SparseRows:
    """Features of libsvm in the compressed form of scipy.sparse.csr_matrix; other features of a row are missing."""

    values: NDArray[Any]
    indices: NDArray[Any]  # column of each value
    ends: NDArray[Any]  # begin of each row in `values`, and the end of the last
    shape: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of a channel."""

    labels: NDArray[Any]
    features: NDArray[Any] | SparseRows  # a dense array has NaN for missing values
    weights: NDArray[Any] | None = None
    groups: NDArray[Any] | None = None  # query of each row, for ranking

    @property
    def num_columns(self) -> int:
        """Number of features."""
        return int(self.features.shape[1])


def read_table(files: Sequence[Path], data_format: DataFormat, *, has_weights: bool = False) -> Table:
    """Read the files of a channel as one table.

    Args:
        files: at least one file.
        data_format: of all files.
        has_weights: whether the second column of CSV holds weights.
    Raises: UserMistake naming the file, for content that is not of the format.
    """
    if data_format is DataFormat.LIBSVM:
        return _read_libsvm(files)
    read = _csv_rows if data_format is DataFormat.CSV else _parquet_rows
    parts: list[NDArray[Any]] = []
    for path in files:
        rows = read(path)
        if parts and rows.shape[1] != parts[0].shape[1]:
            raise UserMistake(f"{path.name} has {rows.shape[1]} columns, but {files[0].name} has {parts[0].shape[1]}")
        parts.append(rows)
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
    num_leading = 1 + (has_weights and data_format is DataFormat.CSV)
    if rows.shape[1] <= num_leading:
        raise UserMistake(
            f"{files[0].name} has {rows.shape[1]} columns: expected the label{', the weight' * (num_leading - 1)} and "
            "at least one feature"
        )
    return Table(labels=rows[:, 0], weights=rows[:, 1] if num_leading > 1 else None, features=rows[:, num_leading:])


def widened(table: Table, num_columns: int) -> Table:
    """Return a sparse table with missing features up to `num_columns`; any other table with rows is returned unchanged.

    The validation data of libsvm may lack the last features of the training data, and a host's part those of others.
    """
    features = table.features
    if not len(table.labels) and not isinstance(features, SparseRows):
        return replace(table, features=np.empty((0, num_columns), np.float32))
    if not isinstance(features, SparseRows) or features.shape[1] >= num_columns:
        return table
    return replace(table, features=replace(features, shape=(features.shape[0], num_columns)))


def with_groups(table: Table) -> Table:
    """Return a table without rows as one of rows with groups, which the other hosts of a ranking have.

    Raises: UserMistake for a table with rows that have no group.
    """
    if table.groups is not None:
        return table
    if len(table.labels):
        raise UserMistake("the rows of this host have no qid, but those of another host have: give it to all rows")
    return replace(table, groups=np.empty(0, np.int64))


def empty_table(data_format: DataFormat) -> Table:
    """Return a table without rows and features, of a host that has no file of a channel."""
    none = np.empty(0, np.float32)
    if data_format is DataFormat.LIBSVM:
        rows = SparseRows(values=none, indices=np.empty(0, np.int64), ends=np.zeros(1, np.int64), shape=(0, 0))
        return Table(labels=none, features=rows)
    return Table(labels=none, features=np.empty((0, 0), np.float32))


def _csv_rows(path: Path) -> NDArray[Any]:
    text = _text_of(path)
    first = text.lstrip().partition("\n")[0]
    delimiter = next((one for one in _DELIMITERS if one in first), ",")
    if delimiter != " ":
        text = _with_missing(text, delimiter)
    try:
        return np.loadtxt(
            io.StringIO(text),
            delimiter=None if delimiter == " " else delimiter,
            dtype=np.float32,
            ndmin=2,
            comments=None,
        )
    except ValueError as error:
        raise UserMistake(
            f"{path.name} is not CSV of numbers: {error}. Expected rows of LABEL,FEATURE,FEATURE without a header; it "
            f"begins with {first[:_SHOWN]!r}"
        ) from None


def _with_missing(text: str, delimiter: str) -> str:
    """Return CSV with `nan` in its empty fields."""
    doubled, line_begin, line_end = delimiter * 2, "\n" + delimiter, delimiter + "\n"
    has_empty = any(one in text for one in (doubled, line_begin, line_end))
    if not (has_empty or text.startswith(delimiter) or text.endswith(delimiter)):
        return text
    mark = re.escape(delimiter)
    return re.sub(f"^(?={mark})|(?<={mark})(?={mark}|$)", "nan", text, flags=re.MULTILINE)


def _parquet_rows(path: Path) -> NDArray[Any]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise UserMistake(
            "Parquet needs the package pyarrow, which the job's environment does not have: install it there, or use "
            "text/csv"
        ) from None
    try:
        table = parquet.read_table(path)
        columns = [np.asarray(column).astype(np.float32) for column in table.columns]
    except (OSError, ValueError, TypeError) as error:  # pyarrow's own errors are kinds of these
        raise UserMistake(f"{path.name} is not Parquet with columns of numbers: {error}") from None
    return np.stack(columns, axis=1)


def _read_libsvm(files: Sequence[Path]) -> Table:
    labels, weights, values = array("f"), array("f"), array("f")  # lists would take eight times the memory
    groups, indices, ends = array("q"), array("q"), array("q", [0])
    for path in files:
        for number, line in enumerate(_text_of(path).splitlines(), start=1):
            line = line.partition("#")[0]
            if not line.strip():
                continue
            try:
                row = _LIBSVM_ROW.fullmatch(line.strip())
                if row is None:
                    raise ValueError("no label")
                labels.append(float(row["label"]))
                if row["weight"] is not None:
                    weights.append(float(row["weight"]))
                if row["group"] is not None:
                    groups.append(int(row["group"]))
                for word in row["features"].split():
                    index, colon, value = word.partition(":")
                    indices.append(_index(index))
                    values.append(float(value) if colon else 1.0)
            except ValueError:
                raise UserMistake(
                    f"{path.name}, line {number}: expected LABEL INDEX:VALUE INDEX:VALUE, got {line[:_SHOWN]!r}"
                ) from None
            ends.append(len(indices))
    for name, given in (("a weight", weights), ("a qid", groups)):
        if given and len(given) != len(labels):
            raise UserMistake(f"{len(given)} of {len(labels)} rows have {name}: give it to all rows or to none")
    features = SparseRows(
        values=np.array(values, np.float32),
        indices=np.array(indices, np.int64),
        ends=np.array(ends, np.int64),
        shape=(len(labels), max(indices, default=-1) + 1),
    )
    return Table(
        labels=np.array(labels, np.float32),
        features=features,
        weights=np.array(weights, np.float32) if weights else None,
        groups=np.array(groups, np.int64) if groups else None,
    )


def _index(text: str) -> int:
    index = int(text)
    if index < 0:
        raise ValueError(text)
    return index


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserMistake(
            f"{path.name} is not text in UTF-8: byte {error.start} is {error.object[error.start]:#x}"
        ) from None
