"""`smp.model_creation`: a context manager that sets how modules are made in its block.

Source: SageMaker developer guide, "tensor parallelism", "support for Hugging Face transformer models".
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from clary.train.parallel import runtime
from clary.train.parallel.memory.delayed import delay_param_initialization
from clary.train.parallel.tensor.registry import tensor_parallelism as tensor_parallel_modules


@contextlib.contextmanager
def model_creation(
    tensor_parallelism: bool = False, dtype: torch.dtype | None = None, **tensor_parallel_config: Any
) -> Iterator[None]:
    """Make modules in `dtype`, without memory for parameters if the configuration delays it, split on request.

    Args:
        tensor_parallel_config: arguments of `smp.tensor_parallelism`; used only if `tensor_parallelism` is true.
    """
    before = torch.get_default_dtype()
    with contextlib.ExitStack() as stack:
        if dtype is not None:
            stack.callback(torch.set_default_dtype, before)
            torch.set_default_dtype(dtype)
        if tensor_parallelism:
            stack.enter_context(tensor_parallel_modules(**tensor_parallel_config))
        stack.enter_context(
            delay_param_initialization(runtime.current().configuration.delayed_parameter_initialization)
        )
        yield
