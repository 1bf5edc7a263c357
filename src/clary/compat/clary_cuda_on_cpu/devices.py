"""Made-up devices: their number, and the current one.

See [Note: how], 2, of the package.
"""

from __future__ import annotations

import os
import types
from typing import Any

_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SM_NUM_GPUS")
_own = types.SimpleNamespace(current=0, asked_for=1)


def num_devices() -> int:
    """Return the number of made-up GPUs: the largest of launchers' local sizes, SM_NUM_GPUS and a library's request."""
    told = (os.environ.get(name, "") for name in _LOCAL_SIZES)
    return max([int(_own.asked_for), *(int(text) for text in told if text.isdigit())])


def make_up_devices(number: int) -> None:
    """Raise the number of made-up devices to at least `number`, for a library that requires that many."""
    _own.asked_for = max(_own.asked_for, number)


def current_device() -> int:
    """Return the number of the current device."""
    return int(_own.current)


def set_device(device: Any) -> None:
    """Make a device the current one, by its number or its name."""
    if isinstance(device, int):
        _own.current = max(device, 0)
    elif isinstance(device, str) and ":" in device:
        _own.current = int(device.partition(":")[2])


class Device:
    """`with torch.cuda.device(1):`."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def __enter__(self) -> None:
        self.before = _own.current
        set_device(self.device)

    def __exit__(self, *_: object) -> None:
        _own.current = self.before


class DeviceOf(Device):
    """`with torch.cuda.device_of(tensor):`; tensors are on no GPU, so the current device stays."""

    def __init__(self, _: Any) -> None:
        super().__init__(None)
