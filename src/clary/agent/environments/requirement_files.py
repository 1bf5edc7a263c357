"""What an installation depends on: requirement files with all that they name, as one hash.

Where: `requirements` keeps environments under this hash; whatever changes what would be installed must change it.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path

from clary.agent.environments.interpreter import InterpreterFacts

_SCHEME = 1  # raised when environments are built in another way
_NESTED = ("-r", "--requirement", "-c", "--constraint")
_EDITABLE = ("-e", "--editable")
_ARCHIVE_SUFFIXES = (".whl", ".tar.gz", ".zip", ".tar.bz2", ".tgz")
_COPY_BYTES = 1 << 20


def installation_key(facts: InterpreterFacts, requirements_file: Path | None, package_folder: Path | None) -> str:
    """Return the name under which an environment with these requirements is kept: 32 hexadecimal digits.

    Files that cannot be read are left to the installer, which says what is wrong with them.
    """
    digest = hashlib.sha256()
    digest.update(json.dumps([_SCHEME, facts.python, facts.version, facts.prefix, facts.distributions]).encode())
    if requirements_file is not None:
        _add_file(digest, requirements_file, requirements_file.parent, set())
    if package_folder is not None:
        _add_content(digest, package_folder)
    return digest.hexdigest()[:32]


def _add_file(digest: hashlib._Hash, file: Path, base: Path, seen: set[Path]) -> None:
    resolved = file.resolve()
    if resolved in seen:
        return
    seen.add(resolved)
    try:
        text = file.read_bytes()
    except OSError:
        return
    digest.update(b"file\0%d\0" % len(text))
    digest.update(text)
    for line in text.decode("utf-8", "replace").replace("\\\n", " ").splitlines():
        _add_line(digest, line, file.parent, base, seen)


def _add_line(digest: hashlib._Hash, line: str, folder: Path, base: Path, seen: set[Path]) -> None:
    """Add what a line names: nested files relative to the file itself, packages relative to `base`, as pip does."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return
    option, value = _option(words)
    if option in _NESTED:
        if "://" not in value:
            _add_file(digest, folder / value, base, seen)
    elif option in _EDITABLE:
        digest.update(str((base / value).resolve()).encode())  # an editable install is bound to its folder
    elif words:
        path = _local_path(line.strip() if "@" in line else words[0], base)
        if path is not None:
            _add_content(digest, path)


def _option(words: list[str]) -> tuple[str, str]:
    """Return the option of a line and its value, from `-r x`, `-rx`, `--requirement x` and `--requirement=x`."""
    if not words or not words[0].startswith("-"):
        return "", ""
    name, has_value, value = words[0].partition("=")
    if not has_value and not name.startswith("--") and len(name) > len("-r"):
        return name[:2], name[2:]
    return name, value if has_value else " ".join(words[1:2])


def _local_path(requirement: str, base: Path) -> Path | None:
    place = requirement.partition("@")[2].strip() if "@" in requirement else requirement
    place = place.split(";")[0].split("#")[0].strip().removeprefix("file://").removeprefix("file:")
    if "://" in place or not place:
        return None
    looks_local = place.startswith((".", "/")) or "/" in place or place.endswith(_ARCHIVE_SUFFIXES)
    path = base / place.split("[")[0]
    return path if looks_local and path.exists() else None


def _add_content(digest: hashlib._Hash, path: Path) -> None:
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    for file in files:
        digest.update(str(file.relative_to(path) if file != path else file.name).encode("utf-8", "surrogateescape"))
        with file.open("rb") as stream:
            while data := stream.read(_COPY_BYTES):
                digest.update(data)
