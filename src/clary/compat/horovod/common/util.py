"""Helpers that programs import from Horovod."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from horovod.common.basics import ccl_built, check_extension, ddl_built, gloo_built, mpi_built, nccl_built

from clary.train.horovod.requests import Reduction

__all__ = [
    "ccl_built",
    "check_extension",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether a framework can be imported; this Horovod needs no compiled extension.

    Args:
        ext_base_name: torch, tensorflow or mxnet.
        verbose: has no effect.
    """
    import importlib.util

    return importlib.util.find_spec(ext_base_name) is not None


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether a framework sees a GPU.

    Args:
        ext_base_name: torch or tensorflow; any other framework has no GPU.
        verbose: has no effect.
    """
    if ext_base_name == "torch":
        import torch

        return bool(torch.cuda.is_available())
    if ext_base_name == "tensorflow":
        import tensorflow as tf

        return bool(tf.config.list_physical_devices("GPU"))
    return False


@contextlib.contextmanager
def env(**kwargs: str) -> Iterator[None]:
    """Set environment variables within a block; the value None removes a variable."""
    before = {name: os.environ.get(name) for name in kwargs}
    _set(kwargs)
    try:
        yield
    finally:
        _set(before)


def _set(values: Any) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def get_average_backwards_compatibility_fun(reduce_ops: Any = None) -> Any:
    """Return `handle_average`, which Horovod's modules obtain by calling this function."""
    return handle_average


def handle_average(op: int | None, average: bool | None) -> Reduction:
    """Return the reduction of a call: given by `op`, or by the older argument `average` of Horovod before 0.19.

    Raises: ValueError if both are given.
    """
    if op is not None:
        if average is not None:
            raise ValueError("pass op= or average= (the argument before Horovod 0.19), not both")
        return Reduction(op)
    return Reduction.SUM if average is False else Reduction.AVERAGE


def num_rank_is_power_2(num_rank: int) -> bool:
    """Return whether a number of ranks is a power of two; 0 is not."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(l: Sequence[Any], n: int) -> list[Sequence[Any]]:  # noqa: E741 - Horovod's name
    """Cut a list into `n` parts whose lengths differ by one at most."""
    length, over = divmod(len(l), n)
    starts = [index * length + min(index, over) for index in range(n + 1)]
    return [l[begin:end] for begin, end in itertools.pairwise(starts)]


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Return whether version `ver` is `target` or newer, comparing the leading numbers of both."""
    return _release(ver) >= _release(target)


def _release(version: str) -> list[int]:
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    return [] if numbers is None else [int(number) for number in numbers[0].split(".")]


def is_iterable(x: Any) -> bool:
    """Return whether `iter` accepts a value."""
    try:
        iter(x)
    except TypeError:
        return False
    return True
