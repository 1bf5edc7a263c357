"""Arrays as JSON, CSV and NPY, and back. NumPy is imported when it is needed."""

from __future__ import annotations

import csv
import io
import json
from typing import Any, NoReturn

from . import content_types, errors
from .refusing import why_not


def array_to_npy(array_like: Any) -> bytes:
    """Return an array, shape [any], in NumPy's file format."""
    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, array_like)
    return buffer.getvalue()


def npy_to_numpy(npy_array: bytes) -> Any:
    """Return the array of a file in NumPy's format. Pickled objects are loaded too: decode trusted data only."""
    import numpy as np

    return np.load(io.BytesIO(npy_array), allow_pickle=True)


def array_to_json(array_like: Any) -> str:
    """Return an array, number or nested list as JSON."""
    return json.dumps(array_like, default=_as_list)


def json_to_numpy(string_like: str, dtype: Any = None) -> Any:
    """Return the array of a JSON text."""
    import numpy as np

    return np.array(json.loads(string_like), dtype=dtype)


def array_to_csv(array_like: Any) -> str:
    """Return an array as lines of CSV; shape [N] becomes N lines of one value.

    Raises: ClientError if it cannot be written.
    """
    import numpy as np

    array = np.array(array_like)
    rows = array.reshape(-1, 1) if array.ndim == 1 else array
    text = io.StringIO()
    try:
        csv.writer(text, lineterminator="\n", strict=True).writerows(rows)
    except csv.Error as error:
        raise errors.ClientError(f"Error while encoding csv: {error}") from error
    return text.getvalue()


def csv_to_numpy(string_like: str, dtype: Any = None) -> Any:
    """Return the array of a CSV text without its axes of length 1: numbers if all are numbers, otherwise text.

    Raises: ClientError if the values do not fit `dtype` or the text is no CSV.
    """
    import numpy as np

    try:
        array = np.array(list(csv.reader(io.StringIO(string_like), strict=True))).squeeze()
    except (csv.Error, ValueError, TypeError) as error:
        raise errors.ClientError(f"Error while decoding csv: {error}") from error
    try:
        return array.astype(dtype)
    except ValueError as error:
        if dtype is None:
            return array
        raise errors.ClientError(f"Error while writing numpy array: {error}. dtype is: {dtype}") from error


def array_to_recordio_protobuf(array_like: Any, labels: Any = None) -> NoReturn:
    """Raise NotImplementedError: only AWS's built-in algorithms read this format."""
    raise NotImplementedError(why_not("sagemaker_training.encoders.array_to_recordio_protobuf"))


def encode(array_like: Any, content_type: str) -> Any:
    """Return an array in a media type. Raises: UnsupportedFormatError for an unknown one."""
    return _chosen(encoders_map, content_type)(array_like)


def decode(obj: Any, content_type: str) -> Any:
    """Return the array of data in a media type. Raises: UnsupportedFormatError for an unknown one."""
    return _chosen(_decoders_map, content_type)(obj)


encoders_map = {
    content_types.NPY: array_to_npy,
    content_types.CSV: array_to_csv,
    content_types.JSON: array_to_json,
}
_decoders_map = {
    content_types.NPY: npy_to_numpy,
    content_types.CSV: csv_to_numpy,
    content_types.JSON: json_to_numpy,
}


def _chosen(functions: dict[str, Any], content_type: str) -> Any:
    if content_type not in functions:
        raise errors.UnsupportedFormatError(content_type)
    return functions[content_type]


def _as_list(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot become JSON: expected an array, a list or a number")
