"""Runs CUDA-only scripts on the CPU, for rehearsals; only if CLARY_CUDA_ON_CPU is 1 or true.

Where: torch calls `register` at the end of `import torch`, through the entry point in the library folder of jobs (as
`clary_autoload`); `clary run --cuda-on-cpu` and a job's hyperparameter set the variable. It runs in the user's
environment, also in Python versions that Clary does not support. torch before 2.5 calls no entry points, so the package
has no effect there.

[Note: how] Three mechanisms, from general to particular.
1. One mode of torch that intercepts every function with its arguments (`TorchFunctionMode`, on which
   `torch.set_default_device` is built) replaces every CUDA device by the CPU: in factories, `.to`, `torch.device`
   itself. No function of torch is replaced for this, so functions can still be scripted, pickled and compared. A mode
   belongs to a thread, so new threads enter the mode as well.
2. `torch.cuda` is Python code over parts that a build for CPUs lacks: its functions are replaced by functions of a
   table.
3. The few classes and functions that read their device before the mode can intercept the call are wrapped, such as
   autocast, GradScaler, DistributedDataParallel, init_process_group, load. Alternatives fail: a private backend cannot
   be named `cuda`, because torch reserves that name; replacing each factory would break scripting, and would miss
   unlisted factories.

[Note: what differs] `x.cuda()` is `x` itself, not a copy. `torch.device("cuda").type` is `cpu`. Autocast to float16
becomes autocast to bfloat16, which CPUs support. The CUDA generator is the CPU's generator. Batch norm is not
synchronised. `torch.compile` returns its argument.

[Note: classes] A class of torch stays a class, so that annotations and type checks can use it. If the CPU cannot do the
work of the class, its constructor raises an error that names the class. `torch._C` is not replaced.

[Note: libraries] FSDP, meshes and Lightning check whether a device is CUDA, and refuse the CPU; a mode cannot intercept
these checks. The few functions that check are replaced when their module is imported, and so are DeepSpeed's Adam
classes. apex, flash_attn and Transformer Engine cannot be installed without a GPU: torch computes the functions of
these libraries that scripts use.

    names       the variable, and the name of the made-up GPU
    mode        the mode, and its test for CUDA devices                    1.
    devices     the number of made-up devices, and the current one        2.
    streams     streams and events that are made up                        2.
    answers     questions about a GPU with a constant answer               2.
    refusing    refusals that name the function                            2.
    cuda_table  the functions and classes of `torch.cuda`                  2.
    libraries   parts of libraries that look for a GPU themselves          3.
    deepspeed_adam  torch's Adam, for DeepSpeed's own                      3.
    wrapping    calls that take devices unseen by modes                    3.
    stand_ins   libraries of kernels that a machine without a GPU lacks    3.
    flash_attention  attention, for them                                   3.
"""

from __future__ import annotations

import os
import sys

from .names import VARIABLE

_NOTICE = (
    f"clary: {VARIABLE}=1: this process computes on the CPU, whatever it is told about CUDA. GPUs, their memory, "
    "streams and events are made up; nccl is gloo; autocast to float16 is to bfloat16; "
    "torch.compile compiles nothing. This is a rehearsal: times and memory mean nothing."
)


def register() -> None:
    """Make CUDA mean the CPU in this process, if the variable is set; harmless when repeated."""
    if os.environ.get(VARIABLE, "").lower() not in ("1", "true"):
        return
    import torch

    if getattr(torch.cuda, "_is_clary", False):
        return
    # `import torch` in every job imports this module; the imports below are late, so that they can fail only in
    # rehearsals.
    from .answers import answer_for_libraries
    from .batch_norm import synchronise_batch_norm
    from .cuda_table import replace_cuda
    from .libraries import mend_libraries
    from .mode import enter_mode
    from .stand_ins import stand_in_for_kernels
    from .wrapping import leave_compiling_out, wrap_devices, wrap_distributed, wrap_parallel, wrap_precision

    print(_NOTICE, file=sys.stderr, flush=True)
    enter_mode(torch)
    replace_cuda(torch)
    answer_for_libraries(torch)
    wrap_devices(torch)
    wrap_precision(torch)
    wrap_parallel(torch)
    synchronise_batch_norm(torch)
    leave_compiling_out(torch)
    if torch.distributed.is_available():
        wrap_distributed(torch.distributed)
    mend_libraries()
    stand_in_for_kernels()
