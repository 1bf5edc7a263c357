"""Functions for scripts of XGBoost's image: a channel as a matrix, and one training on several hosts.

Where: `clary.compat.sagemaker_xgboost_container` offers them under the names of AWS's package. Their arguments and
results are those that public scripts rely on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import xgboost

from clary.train.boosting.channels import data_files
from clary.train.boosting.content_types import parse_content_type
from clary.train.boosting.errors import UserMistake
from clary.train.boosting.group import Group
from clary.train.boosting.matrices import read_table
from clary.train.boosting.training import features

_Path = str | os.PathLike[str]


def get_dmatrix(
    path: _Path | Sequence[_Path] | None,
    content_type: str,
    csv_weights: int = 0,
    is_pipe: bool = False,
    combine_train_val: bool = False,
) -> Any:
    """Return the rows of a channel as a DMatrix; None without a file that has data.

    Args:
        path: folder or file, or several of them, which are read as one.
        content_type: such as `csv` or `text/libsvm`.
        csv_weights: 1 if the second column of CSV holds weights.
        is_pipe: whether the channel is a pipe, which is refused.
        combine_train_val: has no effect; several paths are read as one anyway.
    Raises: UserMistake for data that are not of the format.
    """
    if is_pipe:
        raise UserMistake(f"get_dmatrix({path!r}): the input mode Pipe is not offered here: use File")
    data_format = parse_content_type(content_type)
    files = _files(path)
    if not files:
        return None
    table = read_table(files, data_format, has_weights=csv_weights == 1)
    groups = {} if table.groups is None else {"qid": table.groups}
    return xgboost.DMatrix(features(table), label=table.labels, weight=table.weights, **groups)


def get_size(path: _Path | None, is_pipe: bool = False) -> int:
    """Return the number of bytes of a channel's files; 0 without files. A pipe that exists counts as 1."""
    if is_pipe:
        return int(path is not None and os.path.exists(f"{os.fspath(path)}_0"))
    return sum(file.stat().st_size for file in _files(path))


def get_content_type(content_type: str | None) -> str:
    """Return `csv`, `libsvm` or `parquet` for a ContentType. Raises: UserMistake for any other."""
    return parse_content_type(content_type).value.lower()


def rabit_run(
    exec_fun: Callable[..., Any],
    args: Mapping[str, Any],
    include_in_training: bool,
    hosts: Sequence[str],
    current_host: str,
    first_port: int | None = None,
    second_port: int | None = None,
    max_connect_attempts: int | None = None,
    connect_retry_timeout: float = 0.0,
    update_rabit_args: bool = False,
) -> None:
    """Call a function on all hosts that have rows; in it xgboost trains one model on the rows of all.

    Hosts without rows return at once. If only one host has rows, it trains alone. Any failure ends the process, because
    xgboost's tracker would keep it until the others have left.

    Args:
        exec_fun: the training.
        args: its arguments.
        include_in_training: whether this host has rows.
        hosts: names of all hosts.
        current_host: this host's name.
        first_port: has no effect, nor has `second_port`: hosts meet at MASTER_ADDR and MASTER_PORT.
        second_port: see `first_port`.
        max_connect_attempts: has no effect, nor has `connect_retry_timeout`: hosts wait for each other up to an hour.
        connect_retry_timeout: see `max_connect_attempts`.
        update_rabit_args: whether the function gets `is_master`: whether this host writes the model.
    """
    group = Group(hosts, current_host)
    if group.size == 1:
        exec_fun(**_told(args, is_master=True, tells=update_rabit_args))
        return
    try:
        group.listen(os.environ)
        group.join(os.environ)
        others = _others_with_rows(group, args, hosts, has_rows=include_in_training)
        if include_in_training and others:
            exec_fun(**_told(args, is_master=group.is_first, tells=update_rabit_args))
    except BaseException as error:  # noqa: BLE001 - boundary: a script's function
        _end_at_once(error)
    try:
        group.leave()
    except Exception as error:  # noqa: BLE001 - boundary: the training is over on this host
        print(f"not all hosts have left the group: {type(error).__name__}: {error}", flush=True)
    if include_in_training and not others:
        exec_fun(**_told(args, is_master=True, tells=update_rabit_args))


def _others_with_rows(group: Group, args: Mapping[str, Any], hosts: Sequence[str], *, has_rows: bool) -> int:
    """Return how many other hosts have rows.

    Args:
        group: joined.
        args: of the training.
        hosts: names of all hosts.
        has_rows: whether this host has rows.
    Raises: UserMistake if the hosts cannot train together.
    """
    num_training = int(group.total([float(has_rows)])[0])
    if num_training == 0:
        raise UserMistake(f"rabit_run: no host has training data: {', '.join(hosts)}")
    if 1 < num_training < group.size:
        raise UserMistake(
            f"rabit_run: {num_training} of {group.size} hosts have training data; either all must, or one: take as "
            "many files as hosts, fewer hosts, or the distribution FullyReplicated of the channel"
        )
    widths = [value.num_col() for value in args.values() if isinstance(value, xgboost.DMatrix)] if has_rows else []
    most = group.largest(max(widths, default=0))
    least = -group.largest(-min(widths, default=most))
    if most != least:
        raise UserMistake(
            f"rabit_run: the hosts' rows have from {least} to {most} features; all files need the same columns, and of "
            "libsvm each host's files need a row with the last feature"
        )
    return num_training - has_rows


def _told(args: Mapping[str, Any], *, is_master: bool, tells: bool) -> dict[str, Any]:
    return {**args, "is_master": is_master} if tells else dict(args)


def _files(path: _Path | Sequence[_Path] | None) -> list[Path]:
    if path is None:
        return []
    places = [Path(one) for one in ([path] if isinstance(path, str | os.PathLike) else path)]
    return [
        file
        for place in places
        for file in ([place] if place.is_file() and place.stat().st_size > 0 else data_files(place))
    ]


def _end_at_once(error: BaseException) -> NoReturn:
    """End the process as Python does after an exception, without waiting for other hosts."""
    code: Any = 1
    if isinstance(error, SystemExit):
        code = error.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    else:
        sys.excepthook(type(error), error, error.__traceback__)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)
