"""Declare torchvision's operators, so that its build for GPUs can be imported beside a torch for CPUs.

The wheels of torchvision on the package index are built for CUDA. Beside `torch==2.13.0+cpu` their compiled parts do
not load, and `import torchvision` ends with "operator torchvision::nms does not exist", although its data sets,
transforms and models are plain Python. This module declares the two operators which that import asks for. They have no
implementation: calling them fails, as do torchvision's other operators, by torchvision's own words.

Where: a part of the environments of tests and of no product. Run by an environment's own interpreter it installs itself
there, with an entry point that torch calls at the end of `import torch`:

    .venvs/train/bin/python tools/torchvision_operators.py
"""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path
from typing import Any

NAME = "torchvision_operators"
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
OPERATORS = ("nms", "qnms")  # torchvision 0.28: `_meta_registrations` registers fakes of both without asking for them
METADATA = f"Metadata-Version: 2.1\nName: {NAME.replace('_', '-')}\nVersion: 1\n"
ENTRY_POINTS = f"[torch.backends]\n{NAME} = {NAME}:declare\n"

_kept: list[Any] = []  # torch forgets what a library has declared with the library


def declare() -> None:
    """Declare the operators, unless this torch is one for GPUs, beside which torchvision's own load."""
    import torch

    # A rehearsal of CUDA on the CPU has torch.version tell of a build for GPUs; its folder tells the truth.
    if Path(torch.__file__).with_name("lib").joinpath("libtorch_cuda.so").exists() or _kept:
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in OPERATORS:
        library.define(name + SCHEMA)
    _kept.append(library)


def install(folder: Path) -> None:
    """Write this module and its entry point into a folder of packages.

    Raises: OSError; what was written so far stays, and the next call overwrites it.
    """
    shutil.copyfile(__file__, folder / f"{NAME}.py")
    told = folder / f"{NAME}-1.dist-info"
    told.mkdir(exist_ok=True)
    (told / "METADATA").write_text(METADATA, encoding="utf-8")
    (told / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    (told / "INSTALLER").write_text("tools/torchvision_operators.py\n", encoding="utf-8")
    files = (f"{NAME}.py", *(f"{told.name}/{name}" for name in ("METADATA", "entry_points.txt", "INSTALLER", "RECORD")))
    (told / "RECORD").write_text("".join(f"{name},,\n" for name in files), encoding="utf-8")  # for pip uninstall


if __name__ == "__main__":
    install(Path(sysconfig.get_path("purelib")))
