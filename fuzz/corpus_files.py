"""The kept corpus: one text file a target, one input a line in base64, sorted, so that a change is a readable diff."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"
MAX_INPUTS = 600  # of one target
MAX_FILE_BYTES = 250_000


def corpus_file(target: str) -> Path:
    """Return where the corpus of a target lies."""
    return FOLDER / f"{target}.txt"


def read_corpus(target: str) -> list[bytes]:
    """Return the kept inputs of a target; an empty list if it has no corpus yet."""
    path = corpus_file(target)
    if not path.exists():
        return []
    return [base64.b64decode(line, validate=True) for line in path.read_text("ascii").split("\n") if line]


def write_corpus(target: str, inputs: Iterable[bytes]) -> int:
    """Keep inputs, short ones first, as many as the limits allow; return how many. The empty one is always tried."""
    lines: list[str] = []
    num_bytes = 0
    for item in sorted(set(inputs) - {b""}, key=lambda item: (len(item), item)):
        line = base64.b64encode(item).decode("ascii")
        num_bytes += len(line) + 1
        if len(lines) == MAX_INPUTS or num_bytes > MAX_FILE_BYTES:
            break
        lines.append(line)
    FOLDER.mkdir(parents=True, exist_ok=True)
    corpus_file(target).write_text("".join(f"{line}\n" for line in sorted(lines)), "ascii")
    return len(lines)


def unpack(inputs: Iterable[bytes], folder: Path) -> None:
    """Write inputs as the fuzzer wants them: a file each, named by its content."""
    folder.mkdir(parents=True, exist_ok=True)
    for item in inputs:
        (folder / hashlib.sha1(item, usedforsecurity=False).hexdigest()).write_bytes(item)


def pack(folder: Path) -> list[bytes]:
    """Return the inputs of a folder that the fuzzer has written."""
    return [path.read_bytes() for path in folder.iterdir() if path.is_file()]
