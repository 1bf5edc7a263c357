"""Packs the agent for other machines: one zip archive, named by its SHA-256.

Where: `server.host_source` makes the bundle once; boots fetch it by its digest and unpack it once per node. It contains
the agent and the agent's dependencies, the training library with its compiled core, and no part of the service. It
includes up-to-date bytecode, so that no agent compiles its imports; nodes with another Python version ignore the
bytecode.
Source: PEP 552, on bytecode that is used without a check of the source.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import clary

_WINGS = ("base", "contract", "agent", "train", "compat")
_LEFT_OUT = ("__pycache__", ".pyc")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # time stamp of every member, so that the same files give the same digest
_FILE_MODE = 0o100644 << 16
_BY_TIME, _UNCHECKED = (0).to_bytes(4, "little"), (1).to_bytes(4, "little")  # flags of bytecode


@dataclass(frozen=True)
class Bundle:
    """The archive and its name."""

    digest: str  # SHA-256, 64 hex digits
    data: bytes = field(repr=False)


def make_bundle(package: Path | None = None) -> Bundle:
    """Return the bundle of this release; reads some hundred files.

    Args:
        package: folder of the package `clary`; None for the running package.
    """
    folder = Path(clary.__file__).parent if package is None else package
    paths = [folder / "__init__.py"]
    for wing in _WINGS:
        paths += sorted(path for path in (folder / wing).rglob("*") if path.is_file())
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path in paths:
            within = path.relative_to(folder)
            if any(word in str(within) for word in _LEFT_OUT):
                continue
            place, source = Path("clary") / within, path.read_bytes()
            _add(archive, place, source)
            compiled = Path(importlib.util.cache_from_source(str(path)))
            if path.suffix == ".py" and (code := _bytecode(path, source, compiled)):
                _add(archive, place.parent / compiled.parent.name / compiled.name, code)
    data = written.getvalue()
    return Bundle(digest=hashlib.sha256(data).hexdigest(), data=data)


def _add(archive: zipfile.ZipFile, place: Path, content: bytes) -> None:
    member = zipfile.ZipInfo(str(place), date_time=_EPOCH)
    member.external_attr = _FILE_MODE
    member.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(member, content)


def _bytecode(path: Path, source: bytes, compiled: Path) -> bytes:
    """Return the bytecode of a source in a form that is valid at any path; empty if it is missing or outdated."""
    try:
        data, written_s = compiled.read_bytes(), int(path.stat().st_mtime)
    except OSError:
        return b""
    of_source = b"".join((number & 0xFFFFFFFF).to_bytes(4, "little") for number in (written_s, len(source)))
    if data[:16] != importlib.util.MAGIC_NUMBER + _BY_TIME + of_source:
        return b""
    return importlib.util.MAGIC_NUMBER + _UNCHECKED + importlib.util.source_hash(source) + data[16:]


def boot_script(package: Path | None = None) -> str:
    """Return the source text of the boot."""
    folder = Path(clary.__file__).parent if package is None else package
    return (folder / "agent" / "boot.py").read_text(encoding="utf-8")
