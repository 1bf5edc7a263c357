"""Formats of a channel's files, from the channel's ContentType. Pure."""

from __future__ import annotations

from enum import Enum

from clary.train.boosting.errors import UserMistake


class DataFormat(Enum):
    """Format of the files of both channels."""

    CSV = "CSV"
    LIBSVM = "libsvm"
    PARQUET = "Parquet"


_FORMATS = {
    "csv": DataFormat.CSV,
    "text/csv": DataFormat.CSV,
    "libsvm": DataFormat.LIBSVM,
    "text/libsvm": DataFormat.LIBSVM,
    "text/x-libsvm": DataFormat.LIBSVM,
    "parquet": DataFormat.PARQUET,
    "application/x-parquet": DataFormat.PARQUET,
}
_RECORDIO = ("recordio-protobuf", "application/x-recordio-protobuf")


def parse_content_type(text: str | None) -> DataFormat:
    """Return the format that a ContentType names, such as `text/csv; label_size=1`; libsvm without one.

    Raises: UserMistake for a type that is unknown or not offered, and for a `label_size` other than 1.
    """
    if not text:
        return DataFormat.LIBSVM
    name, *parameters = (part.strip() for part in text.lower().split(";"))
    if name in _RECORDIO:
        raise UserMistake(f"ContentType {text!r}: recordio-protobuf is not offered here: use text/csv or text/libsvm")
    found = _FORMATS.get(name)
    if found is None:
        raise UserMistake(f"ContentType {text!r}: expected one of {', '.join(_FORMATS)}")
    for parameter in parameters:
        key, _, value = (part.strip() for part in parameter.partition("="))
        if key == "label_size" and value.strip('"') != "1":
            raise UserMistake(f"ContentType {text!r}: label_size must be 1, because XGBoost has one label for each row")
    return found
