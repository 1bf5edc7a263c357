"""Runs scripts that demand CUDA on the CPU, for rehearsals; only where CLARY_CUDA_ON_CPU=1 is set.

Where: torch calls `register` at the end of `import torch`, through the entry point of the folder that jobs get (as
`clary_autoload`); `clary run --cuda-on-cpu` and a job's hyperparameter set the variable. It runs in the user's
environment, also in Python versions that Clary does not support. torch before 2.5 calls no hook, so nothing happens
there.

[Note: how] Three mechanisms, from general to particular.
1. One mode of torch that sees every function with its arguments (`TorchFunctionMode`, of which
   `torch.set_default_device` is made) turns every device that is CUDA into the CPU: in factories, `.to`, `torch.device`
   itself. No function of torch is replaced for this, so scripting, pickling and comparing them still work. Modes
   belong to threads, so new threads enter it as well.
2. `torch.cuda` is Python over parts that a build for CPUs does not have: its functions are replaced, by a table.
3. The few classes and functions that take a device before torch looks at its arguments are wrapped: autocast,
   GradScaler, DistributedDataParallel, init_process_group, load.
Other ways fail: a private backend cannot be named `cuda`, as torch has that name; replacing each factory would
break scripting, and would miss unlisted factories.

[Note: what differs] `x.cuda()` is `x` and no copy of it. `torch.device("cuda").type` is `cpu`. Autocast to float16
becomes bfloat16, which CPUs support. The generator of CUDA is the CPU's. Batch norm is not synchronised.
`torch.compile` returns its argument.

[Note: classes] A class of torch stays a class, so that it may stand in annotations and checks. Where the CPU cannot
do its work, its constructor raises an error that names it. `torch._C` is not replaced.

[Note: libraries] FSDP, meshes and Lightning ask whether a device is CUDA, and refuse the CPU; modes see none of it. The
few functions that ask are replaced when their module is imported, and so are DeepSpeed's Adams. apex, flash_attn and
Transformer Engine cannot be installed where there is no GPU: torch computes the functions that scripts use of them.

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
    "streams and events are made up; nccl is gloo; autocast to float16 is to bfloat16; batch norm is not synchronised; "
    "torch.compile compiles nothing. This is a rehearsal: times and memory mean nothing."
)


def register() -> None:
    """Make CUDA mean the CPU in this process, if the variable is set; harmless when repeated."""
    if os.environ.get(VARIABLE, "").lower() not in ("1", "true"):
        return
    import torch

    if getattr(torch.cuda, "_is_clary", False):
        return
    # `import torch` of every job imports this module; imports for rehearsals may fail in rehearsals alone.
    from .answers import answer_for_libraries
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
    leave_compiling_out(torch)
    if torch.distributed.is_available():
        wrap_distributed(torch.distributed)
    mend_libraries()
    stand_in_for_kernels()
