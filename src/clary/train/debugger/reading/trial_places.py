"""Trials whose files are in a folder or below a prefix of S3. The names are smdebug's."""

from __future__ import annotations

from pathlib import Path

from clary.train.debugger.files import LocalFiles
from clary.train.debugger.reading.s3_files import SCHEME, open_s3_files
from clary.train.debugger.reading.trial import Trial


def create_trial(
    path: str | Path, name: str | None = None, range_steps: tuple[int | None, int | None] | None = None
) -> Trial:
    """Return the trial of a folder, or of a prefix `s3://bucket/prefix`; either may still be empty.

    Args:
        range_steps: global steps to look at, from the first on, up to and not including the second.

    Raises: ConfigurationError, also if S3 is not accessible.
    """
    if str(path).startswith(SCHEME):
        bucket, _, prefix = str(path).removeprefix(SCHEME).partition("/")
        return S3Trial(name or Path(str(path)).name, bucket, prefix, range_steps)
    return LocalTrial(name or Path(path).name, path, range_steps)


class LocalTrial(Trial):
    """The trial of a folder. `check`, `index_mode` and `cache` are accepted for smdebug's sake."""

    def __init__(
        self,
        name: str,
        dirname: str | Path,
        range_steps: tuple[int | None, int | None] | None = None,
        check: bool = False,
        index_mode: bool = True,
        cache: bool = False,
    ) -> None:
        super().__init__(LocalFiles(Path(dirname)), name=name, range_steps=range_steps, path=str(dirname))


class S3Trial(Trial):
    """The trial of a prefix in S3. `check`, `index_mode` and `cache` are accepted for smdebug's sake.

    Raises: ConfigurationError, also if S3 is not accessible.
    """

    def __init__(
        self,
        name: str,
        bucket_name: str,
        prefix_name: str,
        range_steps: tuple[int | None, int | None] | None = None,
        check: bool = False,
        index_mode: bool = True,
        cache: bool = False,
    ) -> None:
        uri = f"{SCHEME}{bucket_name}/{prefix_name}"
        super().__init__(open_s3_files(uri), name=name, range_steps=range_steps, path=uri)
