"""Meanings of Xids, the numbers by which NVIDIA's driver reports errors of GPUs. Pure.

Where: the agent notes them on a host whose program has ended, and the service asks whether one explains a failure.
Source: NVIDIA, "Xid Errors" and its catalogue; only numbers whose meaning is the same across GPUs are here.
"""

from __future__ import annotations

# Of the GPU, its memory, its links or its firmware: no program brings them about, and none goes on with them.
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
# What programs bring about, as a rule, and what tells of neither.
_OTHERS = {
    13: "an exception in a kernel of the program",
    31: "a memory access of the program that is not allowed",
    43: "the program's work was ended after an error of its own",
    45: "the program's work was ended early",
    63: "a bad row of its memory was replaced",
}


def is_of_hardware(xid: int) -> bool:
    """Whether an Xid is about the GPU itself and not about the program on it."""
    return xid in _OF_HARDWARE


def xid_in_words(xid: int) -> str:
    """Return `Xid 79, the GPU has fallen off the bus`; only `Xid N` if the number is not in the tables here."""
    meaning = _OF_HARDWARE.get(xid) or _OTHERS.get(xid)
    return f"Xid {xid}, {meaning}" if meaning else f"Xid {xid}"
