"""Packing of the daemon and its imports into one file; the same sources give the same bytes, identified by a digest.

Where: the command line sends it to boxes (`cli.remote_python`), and compares its digest with the digests that boxes
report.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import clary

_PACKAGES = ("clary", "clary/agent", "clary/base", "clary/contract")  # get an empty `__init__`
_MODULES = (
    "base/errors.py",
    "base/kernel_files.py",
    "base/limited_runs.py",
    "base/passing_errors.py",
    "base/plain.py",
    "base/processes.py",
    "base/readiness.py",
    "base/string_enum.py",
    "base/tree_removal.py",
    "base/whole_files.py",
    "contract/box_protocol.py",
)
_FOLDER = "agent/node"
_START = '''"""Starts the daemon's commands."""

import sys

from clary.agent.node.__main__ import main

sys.exit(main(sys.argv[1:]))
'''
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time in a zip file


def pack_node() -> bytes:
    """Return the bytes of the zip file."""
    root = Path(clary.__file__).parent
    own = sorted(path.relative_to(root).as_posix() for path in (root / _FOLDER).glob("*.py"))
    contents = {f"{package}/__init__.py": "" for package in _PACKAGES}
    contents |= {f"clary/{name}": (root / name).read_text(encoding="utf-8") for name in (*_MODULES, *own)}
    contents["__main__.py"] = _START
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in sorted(contents.items()):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, text)
    return packed.getvalue()


def digest_of(packed: bytes) -> str:
    """Return the SHA-256 of a zip file in hex."""
    return hashlib.sha256(packed).hexdigest()
