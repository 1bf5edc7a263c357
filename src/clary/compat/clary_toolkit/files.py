"""Small files of a training: the marks of success and failure, temporary folders, text and JSON."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from . import environment
from .refusing import why_not


def write_success_file() -> None:
    """Write the empty file `success` into the output folder."""
    Path(environment.output_dir, "success").write_text("")


def write_failure_file(failure_msg: str) -> None:
    """Write `failure`, whose text becomes the job's FailureReason; an existing file stays."""
    path = Path(environment.output_dir, "failure")
    if not path.exists():
        path.write_text(failure_msg)


@contextmanager
def tmpdir(suffix: str = "", prefix: str = "tmp", directory: str | None = None) -> Iterator[str]:
    """Make a folder that exists during the `with` block.

    Args: as of `tempfile.mkdtemp`; `directory` is its `dir`.
    """
    with tempfile.TemporaryDirectory(suffix=suffix, prefix=prefix, dir=directory) as folder:
        yield folder


def write_file(path: str, data: Any, mode: str = "w") -> None:
    """Write a file.

    Args:
        path: of the file.
        data: text, or bytes if the mode has `b`.
        mode: of `open`.
    """
    with open(path, mode) as file:
        file.write(data)


def read_file(path: str, mode: str = "r") -> Any:
    """Return the content of a file, as bytes if the mode has `b`."""
    with open(path, mode) as file:
        return file.read()


def read_json(path: str) -> Any:
    """Return the value of a JSON file."""
    return json.loads(Path(path).read_text())


def download_and_extract(uri: str, path: str) -> NoReturn:
    """Raise NotImplementedError: the agent has laid the code into the job already."""
    raise NotImplementedError(why_not("sagemaker_training.files.download_and_extract"))


def s3_download(url: str, dst: str) -> NoReturn:
    """Raise NotImplementedError: boto3 downloads files."""
    raise NotImplementedError(why_not("sagemaker_training.files.s3_download"))
