"""The end of the last Python traceback in a program's lines. Pure.

Where: `clary describe --why` and the console show it next to the cause, which has room for the exception alone.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST_FRAMES = 4  # innermost frames, in which the error was raised
MOST_LINES = 40  # limit of one traceback: messages of some libraries are pages long
_BEGIN = "Traceback (most recent call last):"
_FRAME = '  File "'


def last_traceback(lines: Sequence[str]) -> list[str]:
    """Return the last frames and the exception, or an empty list if the lines hold no traceback.

    Args:
        lines: lines of one process, oldest first. A prefix that a launcher puts before each line, such as torchrun's
            `[rank0]: `, is left out.
    """
    begins = [index for index, line in enumerate(lines) if line.rstrip().endswith(_BEGIN)]
    if not begins:
        return []
    begin = begins[-1]
    prefix = lines[begin].rstrip().removesuffix(_BEGIN)
    own = [line.removeprefix(prefix) for line in lines[begin + 1 :] if line.startswith(prefix)]
    body = list(_of_traceback(own))
    frames = [index for index, line in enumerate(body) if line.startswith(_FRAME)]
    if not frames:
        return []
    first = frames[-MOST_FRAMES] if len(frames) > MOST_FRAMES else frames[0]
    skipped = sum(index < first for index in frames)
    above = [f"  ... {skipped} frame{'' if skipped == 1 else 's'} above"] if skipped else []
    return [_BEGIN, *above, *body[first:]][:MOST_LINES]


def _of_traceback(lines: Sequence[str]) -> list[str]:
    """Return the indented lines of frames, and the message of the exception."""
    frames_end = next((index for index, line in enumerate(lines) if line and not line.startswith(" ")), len(lines))
    said_end = frames_end + 1
    # An exception's message may continue on indented lines; it ends at the next line that is not indented.
    while said_end < len(lines) and lines[said_end].startswith(("  ", "\t")):
        said_end += 1
    return list(lines[:said_end])
