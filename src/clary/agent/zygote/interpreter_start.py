"""Decides which programs a waiting interpreter can become. Pure.

Where: `clary.agent.host.standby` calls it for each process.

An interpreter and its loaded libraries have already read some variables, and cannot read them again. So these variables
have to be the same; all other variables are replaced. Variables that are read only when needed may differ: PATH (the
interpreter is named with its folder), CUDA_VISIBLE_DEVICES (when CUDA is initialised, which it is not), NCCL_*, GLOO_*,
TORCH_NCCL_* and TORCHELASTIC_* (when a process group is made), TZ (read again), SM_* and AWS_*.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

ZYGOTE = str(Path(__file__).with_name("clary_zygote.py"))
RANK_SHIM = str(Path(__file__).parents[1] / "launchers" / "shims" / "clary_rank.py")

_PREFIXES = (
    "PYTHON",  # of the interpreter
    "LD_",  # of the loader of libraries
    "GLIBC_",  # of the C library and its memory
    "MALLOC_",
    "LC_",  # encodings of files and streams
    "OMP_",  # threads of the libraries that compute
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "GOTO_",
    "BLIS_",
    "ATEN_",  # torch
    "C10_",
    "KINETO_",
    "TORCH_",
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
    "PYTORCH_",
    "NPY_",  # numpy
    "NUMPY_",
)
_NAMES = frozenset(
    {
        "HOME",  # the user's folder of packages
        "LANG",
        "LANGUAGE",
        "TMPDIR",
        "XDG_CACHE_HOME",
        "JEMALLOC_CONF",
        "MKLROOT",
        "DNNL_VERBOSE",
        "ONEDNN_VERBOSE",
        "OPENSSL_CONF",
        "CLARY_STEPS_FOLDER",  # hooks that record steps are installed before the fork
        "CLARY_STEPS",
        "CLARY_CALLS",
    }
)
_READ_LATER = ("TORCH_NCCL_", "TORCHELASTIC_")
_MAX_VARIABLE_BYTES = 131_071  # limit of the kernel (MAX_ARG_STRLEN); the error from `spawn` names a longer variable


def start_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an interpreter reads at its start or in imports; a waiting one gets no others."""
    return {name: value for name, value in environment.items() if _is_read_at_start(name)}


def why_not_fork(argv: Sequence[str], environment: Mapping[str, str], *, python: str, start: Mapping[str, str]) -> str:
    """Return why an interpreter cannot become this process, in words; empty if it can.

    Args:
        argv: command line of the process.
        environment: environment variables of the process.
        python: the waiting interpreter.
        start: variables with which it was started.
    """
    if len(argv) < 3 or argv[2] == "" or argv[1] != RANK_SHIM:
        return f"{' '.join(argv[:2])} is no Python program that Clary starts"
    if argv[0] != python:
        return f"its interpreter is {argv[0]}, and {python} stands ready"
    wanted = start_variables(environment)
    for name in sorted({*wanted, *start}):
        if wanted.get(name) != start.get(name):
            return f"{name} is {_shown(wanted, name)}, and {_shown(start, name)} where {python} stands ready"
    if any(not os.path.isabs(folder) for folder in wanted.get("PYTHONPATH", "/").split(":")):
        return f"PYTHONPATH={wanted['PYTHONPATH']} depends on the working folder"
    for name, value in environment.items():
        if not name or "=" in name or "\0" in name + value:
            return f"the variable {name!r} cannot be carried by an environment"
        if len(os.fsencode(f"{name}={value}")) > _MAX_VARIABLE_BYTES:
            return f"the variable {name} is too long for an environment"
    if any("\0" in argument for argument in argv):
        return "an argument holds a zero byte"
    return ""


def _is_read_at_start(name: str) -> bool:
    return name in _NAMES or (name.startswith(_PREFIXES) and not name.startswith(_READ_LATER))


def _shown(variables: Mapping[str, str], name: str) -> str:
    return repr(variables[name]) if name in variables else "not set"
