"""Package indexes that the owner has configured for pip and uv on this machine, as entries that programs may reach.

Where: `server.egress_site` adds them to setting `reachable_networks`: requirements of jobs are installed inside hosts,
which have no other route to an index. An owner who sets PIP_INDEX_URL for the service thereby allows that address.
Source: pip documentation, "Configuration"; uv documentation, "Environment variables" and "Indexes".
"""

from __future__ import annotations

import logging
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from clary.contract.settings.pip_options import pip_options
from clary.control.egress.entries import Reachable, parse_entry

_PIP_OPTIONS = ("index-url", "extra-index-url", "find-links")
_UV_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")
_SEPARATORS = re.compile(r"[\s,]+")
_PORTS = {"http": 80, "https": 443}

_log = logging.getLogger(__name__)


def index_entries(environ: Mapping[str, str]) -> tuple[Reachable, ...]:
    """Return an entry for each index that pip or uv would search with these variables and their configuration files."""
    entries = {}
    for url in _urls(environ):
        try:
            entry = _entry(url)
        except ValueError as error:
            _log.warning("a package index that is set up here cannot be reached by programs: %s", error)
            continue
        if entry is not None:
            entries[str(entry)] = entry
    return tuple(entries.values())


def _urls(environ: Mapping[str, str]) -> Iterator[str]:
    options = pip_options(environ, None)
    for option in _PIP_OPTIONS:
        yield from _SEPARATORS.split(options.get(option, ""))
    for variable in _UV_VARIABLES:
        yield from _SEPARATORS.split(environ.get(variable, ""))
    home = Path(environ.get("HOME", "/"))
    user_file = Path(environ.get("XDG_CONFIG_HOME", home / ".config")) / "uv/uv.toml"
    for file in (Path("/etc/uv/uv.toml"), user_file, Path(environ.get("UV_CONFIG_FILE", user_file))):
        yield from _urls_of_uv(file)


def _urls_of_uv(file: Path) -> Iterator[str]:
    try:
        document: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return  # absent, or not TOML, which uv itself reports
    for table in (document, document.get("pip")):
        if not isinstance(table, dict):
            continue  # absent, or of another type, which uv itself reports
        for name in _PIP_OPTIONS:
            value = table.get(name, [])
            yield from (str(text) for text in (value if isinstance(value, list) else [value]))
        indexes = table.get("index")
        for index in indexes if isinstance(indexes, list) else ():
            yield str(index.get("url", "")) if isinstance(index, dict) else ""


def _entry(url: str) -> Reachable | None:
    """Return the entry of one URL; uv writes `name=url` for an index with a name."""
    found = re.search(r"https?://\S+", url)
    if found is None:
        return None
    parts = urlsplit(found[0])
    if not parts.hostname:
        return None
    place = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return parse_entry(f"{place}:{parts.port or _PORTS[parts.scheme]}")
