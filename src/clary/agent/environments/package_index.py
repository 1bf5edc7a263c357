"""Sources of packages: pip's configuration of this machine, as variables of uv.

Where: `installation` gives the result to uv, which does not read pip's configuration itself. Existing settings of the
machine for uv take precedence. Of the owner's secrets, an installation gets only the credentials of the configured
indexes.
Source: pip documentation, "Configuration"; uv documentation, "Compatibility with pip".
"""

from __future__ import annotations

import netrc
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from clary.contract.settings.pip_options import pip_options

_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")
_INDEX_LISTS = {"UV_FIND_LINKS": ",", "UV_INDEX": None, "UV_EXTRA_INDEX_URL": None}  # variable -> separator


def uv_index_variables(machine: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return UV_* variables that make uv search where pip would search.

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
        variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # like pip: the newest version in all indexes
    if links:
        variables["UV_FIND_LINKS"] = ",".join(links)
    if options.get("trusted-host"):
        variables["UV_INSECURE_HOST"] = " ".join(options["trusted-host"].split())
    if options.get("cert") and "SSL_CERT_FILE" not in machine:
        variables["SSL_CERT_FILE"] = options["cert"]
    return variables


def is_without_index(machine: Mapping[str, str], prefix: str) -> bool:
    """Whether pip's configuration sets `no-index`, for which uv has an option but no variable."""
    return pip_options(machine, prefix).get("no-index", "").lower() in ("1", "true", "yes", "on")


def local_folders(variables: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the local folders that UV_* variables name as package sources.

    For an index named `simple`, whose pages link to files beside it, its parent folder is returned.
    """
    found = []
    for name in _INDEX_VARIABLES:
        for place in _places(variables, name):
            plain = place if name == "UV_FIND_LINKS" else place.partition("=")[2] or place
            is_file = plain.startswith("file:")
            path = Path(unquote(urlsplit(plain).path) if is_file else plain).expanduser()
            if (is_file or "://" not in plain) and path.is_absolute() and path.exists():
                found.append(path.parent if path.name == "simple" else path)
    return tuple(dict.fromkeys(found))


def with_credentials(variables: Mapping[str, str], machine: Mapping[str, str]) -> dict[str, str]:
    """Return `variables` with the owner's .netrc credentials for the indexes in them.

    An installation never sees the .netrc file, which has credentials for other servers too.
    """
    place = Path(machine.get("NETRC") or Path(machine.get("HOME", "/"), ".netrc"))
    try:
        known = netrc.netrc(place)
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        return dict(variables)
    filled = dict(variables)
    for name in _INDEX_VARIABLES:
        places = [_with_login(place, known) for place in _places(variables, name)]
        if places:
            filled[name] = (_INDEX_LISTS.get(name) or " ").join(places)
    return filled


def _places(variables: Mapping[str, str], name: str) -> list[str]:
    value = variables.get(name, "")
    return [place.strip() for place in value.split(_INDEX_LISTS.get(name)) if place.strip()]


def _with_login(place: str, known: netrc.netrc) -> str:
    parts = urlsplit(place.partition("=")[2] if "=" in place.partition("://")[0] else place)
    login = known.authenticators(parts.hostname) if parts.scheme in ("http", "https") and parts.hostname else None
    if login is None or "@" in parts.netloc or parts.hostname not in known.hosts:
        return place
    user, _, password = login
    return place.replace("://", f"://{quote(user, safe='')}:{quote(password or '', safe='')}@", 1)


def _existing(places: Sequence[str]) -> list[str]:
    """Drop folders that do not exist: pip only warns about them, uv fails."""
    return [place for place in places if not _is_missing_folder(place)]


def _is_missing_folder(place: str) -> bool:
    if place.startswith("file:"):
        return not Path(unquote(urlsplit(place).path)).exists()
    return "://" not in place and not Path(place).expanduser().exists()
