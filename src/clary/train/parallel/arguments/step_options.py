"""The function and the options of `smp.step` as scripts write them; independent of the framework.

Where: `step` and `tf_parallel.step` use it. Scripts write `@smp.step`, `@smp.step(non_split_inputs=[...])`, or the two
options that both frameworks share by their place, in the documented order.
Source: sagemaker-python-sdk `doc/api/training/smp_versions/latest/smd_model_parallel_common_api.rst`, `smp.step`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

_ORDER = ("non_split_inputs", "input_split_axes")

Options = tuple[Callable[..., Any] | None, Collection[str], Mapping[str, int]]


def read_options(arguments: Sequence[Any], whole: Collection[str] | None, axes: Mapping[str, int] | None) -> Options:
    """Return the function, None if it is still to come, the names of uncut arguments, and the axes by name.

    Args:
        arguments: positional arguments: the function, if it is there, then options in the documented order.
        whole: the option `non_split_inputs` if it was given by name.
        axes: the option `input_split_axes` if it was given by name.

    Raises: TypeError for an option that was given twice, for more options by their place, and for values that are not
        names or not axes by name.
    """
    function = arguments[0] if arguments and callable(arguments[0]) else None
    by_place = list(arguments if function is None else arguments[1:])
    if len(by_place) > len(_ORDER):
        raise TypeError(
            f"smp.step: got {len(by_place)} options by their place; expected {' and '.join(_ORDER)} at most: give the "
            "others by name"
        )
    options: dict[str, Any] = dict(zip(_ORDER, (whole, axes), strict=True))
    for name, value in zip(_ORDER, by_place, strict=False):
        if options[name] is not None:
            raise TypeError(f"smp.step: {name} was given by its place and by its name: leave one of them out")
        options[name] = value
    whole, axes = options["non_split_inputs"], options["input_split_axes"]
    return function, () if whole is None else _names(whole), {} if axes is None else _axes(axes)


def _names(value: Any) -> Collection[str]:
    is_list = isinstance(value, Collection) and not isinstance(value, str | bytes)
    if not is_list or not all(isinstance(name, str) for name in value):
        raise TypeError(
            f"smp.step: non_split_inputs is {value!r}; expected a list of names of arguments, such as ['labels']"
        )
    names: Collection[str] = value
    return names


def _axes(value: Any) -> Mapping[str, int]:
    is_dict = isinstance(value, Mapping) and all(isinstance(name, str) for name in value)
    try:
        axes = {name: operator.index(axis) for name, axis in value.items()} if is_dict else None
    except TypeError:  # one of them is not a whole number
        axes = None
    if axes is None:
        raise TypeError(
            f"smp.step: input_split_axes is {value!r}; expected a dict from names of arguments to axes, such as "
            "{'images': 1}"
        )
    return axes
