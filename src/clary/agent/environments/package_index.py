"""Where packages come from: pip's configuration of this machine, in uv's words.

Where: `requirements` gives the result to uv, which does not read pip's configuration itself. Settings for uv that the
machine already has win.
Source: pip documentation, "Configuration"; uv documentation, "Compatibility with pip".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from clary.contract.pip_options import pip_options

_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")


def uv_index_variables(machine: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return UV_* variables that make uv look where pip would look.

    Args:
        machine: environment of the agent: HOME, PIP_*, UV_*.
        prefix: root of the Python environment, which may have a pip.conf of its own.
    """
    if any(name in machine for name in _INDEX_VARIABLES):
        return {}
    options = pip_options(machine, prefix)
    variables = {}
    extra = _existing(options.get("extra-index-url", "").split())
    links = _existing(options.get("find-links", "").split())
    if options.get("index-url"):
        variables["UV_DEFAULT_INDEX"] = options["index-url"]
    if extra:
        variables["UV_INDEX"] = " ".join(extra)
        variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # as pip: the newest version of all indexes
    if links:
        variables["UV_FIND_LINKS"] = ",".join(links)
    if options.get("trusted-host"):
        variables["UV_INSECURE_HOST"] = " ".join(options["trusted-host"].split())
    if options.get("cert") and "SSL_CERT_FILE" not in machine:
        variables["SSL_CERT_FILE"] = options["cert"]
    return variables


def is_without_index(machine: Mapping[str, str], prefix: str) -> bool:
    """Whether pip would ask no index at all (`no-index`), for which uv has an option but no variable."""
    return pip_options(machine, prefix).get("no-index", "").lower() in ("1", "true", "yes", "on")


def _existing(places: Sequence[str]) -> list[str]:
    """Drop folders that do not exist: pip warns of them, uv fails."""
    return [place for place in places if not _is_missing_folder(place)]


def _is_missing_folder(place: str) -> bool:
    if place.startswith("file:"):
        return not Path(unquote(urlsplit(place).path)).exists()
    return "://" not in place and not Path(place).expanduser().exists()
