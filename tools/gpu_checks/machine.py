"""Hardware and software of this machine: a check for a GPU, and facts for the page of results."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess

from tools.gpu_checks.running import ABSENT, PASSED
from tools.gpu_checks.telling import tell


def main() -> None:
    """Tell the versions of all that matters."""
    facts: dict[str, object] = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "compiler": _first_line(os.environ.get("CXX", "c++"), "--version"),
        "cmake": _first_line("cmake", "--version"),
        "driver": _first_line("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"),
    }
    try:
        import torch
    except ImportError as error:
        tell(ABSENT, f"this Python has no torch: {error}", facts)
        return
    facts |= {"torch": torch.__version__, "cuda": torch.version.cuda}
    if not torch.cuda.is_available():
        tell(ABSENT, "torch sees no GPU", facts)
        return
    facts |= {
        "gpus": torch.cuda.device_count(),
        "gpu": torch.cuda.get_device_name(0),
        "nccl": torch.distributed.is_nccl_available(),
    }
    if os.environ.get("CLARY_CUDA_ON_CPU"):
        tell(ABSENT, "rehearsed on the CPU: the GPU is made up", facts)
        return
    tell(PASSED, "", facts)


def _first_line(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return "none"
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return (done.stdout.splitlines() or [f"ended with {done.returncode}"])[0]


if __name__ == "__main__":
    main()
