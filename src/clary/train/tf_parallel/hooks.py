"""`smp.register_post_partition_hook`: delays calls until a model is cut, before its first step.

Source: sagemaker-python-sdk `doc/api/training/smp_versions/latest/smd_model_parallel_tensorflow.rst`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from clary.train.tf_parallel import session


def register_post_partition_hook(hook: Callable[..., Any]) -> Callable[..., None]:
    """Decorate a function: its calls are delayed until a model is cut, and then run eagerly, once.

    A call after the cut runs at once. Results are dropped; errors are raised in the first step.
    """

    @functools.wraps(hook)
    def later(*args: Any, **kwargs: Any) -> None:
        now = session.current()
        if now.models:
            hook(*args, **kwargs)
        else:
            now.waiting.append(functools.partial(hook, *args, **kwargs))

    return later
