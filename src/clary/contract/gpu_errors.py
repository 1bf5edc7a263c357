"""Meanings of Xids, the numbers by which NVIDIA's driver reports errors of GPUs. Pure.

Where: the agent records Xids on a host whose program has ended, and the service checks whether an Xid explains a
failure.
Source: NVIDIA, "Xid Errors" and its catalogue; only numbers with the same meaning on all GPUs.
"""

from __future__ import annotations

# Errors of the GPU, its memory, its links or its firmware: programs do not cause them, and cannot continue.
_OF_HARDWARE = {
    48: "a double-bit memory error",
    62: "an internal microcontroller has halted",
    64: "a bad row of its memory could not be replaced",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    94: "a memory error that was contained to the program",
    95: "a memory error that was not contained",
    119: "its firmware does not answer (GSP)",
    120: "an error of its firmware (GSP)",
    140: "a memory error that could not be corrected",
}
# Errors that programs usually cause, and errors with an unclear cause.
_OTHERS = {
    13: "an exception in a kernel of the program",
    31: "a memory access of the program that is not allowed",
    43: "the program's work was ended after an error of its own",
    45: "the program's work was ended early",
    63: "a bad row of its memory was replaced",
}


def is_of_hardware(xid: int) -> bool:
    """Whether an Xid reports an error of the GPU itself and not of the program."""
    return xid in _OF_HARDWARE


def xid_in_words(xid: int) -> str:
    """Return `Xid 79, the GPU has fallen off the bus`; only `Xid N` if the number is not in this module's tables."""
    meaning = _OF_HARDWARE.get(xid) or _OTHERS.get(xid)
    return f"Xid {xid}, {meaning}" if meaning else f"Xid {xid}"
