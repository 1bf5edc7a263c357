"""Packs the agent for other machines: one zip archive, named by its SHA-256.

Where: `cluster_engine` makes it once; boots fetch it by its digest and unpack it once a node. It holds the agent and
what the agent needs, the training library with its compiled core, and nothing of the service.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import clary

_WINGS = ("base", "contract", "agent", "train", "compat")
_LEFT_OUT = ("__pycache__", ".pyc")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # of every member: the same files give the same digest
_FILE_MODE = 0o100644 << 16


@dataclass(frozen=True)
class Bundle:
    """The archive and its name."""

    digest: str  # SHA-256, 64 hex digits
    data: bytes = field(repr=False)


def make_bundle(package: Path | None = None) -> Bundle:
    """Return the bundle of this release; reads some hundred files.

    Args:
        package: folder of the package `clary`; None is the one that runs.
    """
    folder = Path(clary.__file__).parent if package is None else package
    paths = [folder / "__init__.py"]
    for wing in _WINGS:
        paths += sorted(path for path in (folder / wing).rglob("*") if path.is_file())
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path in paths:
            if any(word in str(path) for word in _LEFT_OUT):
                continue
            member = zipfile.ZipInfo(str(Path("clary") / path.relative_to(folder)), date_time=_EPOCH)
            member.external_attr = _FILE_MODE
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, path.read_bytes())
    data = written.getvalue()
    return Bundle(digest=hashlib.sha256(data).hexdigest(), data=data)


def boot_script(package: Path | None = None) -> str:
    """Return the source text of the boot."""
    folder = Path(clary.__file__).parent if package is None else package
    return (folder / "agent" / "boot.py").read_text(encoding="utf-8")
