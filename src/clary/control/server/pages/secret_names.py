"""Masks likely secrets in a job's request and plan, for pages that a browser shows.

Where: `clary_handler`, for routes that hide secrets from a session (request, plan, dump, tuning), and the comparison of
jobs. The command line shows the values of these routes to their owner; other people may see a browser's screen.

Values under names that the user chose are hidden if the name contains SECRET, PASSW, CREDENTIAL, PRIVATE_KEY or
API_KEY; or KEY or TOKEN, unless the value is a plain number or a truth value, or the name is about a tokenizer. The
same rules hide the value after a flag of such a name. A password within a URL is hidden everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from clary.contract.launch_plan import SECRET_PLACEHOLDER

# Members of a request or a plan that map names chosen by the user to values.
USER_MAPPINGS = frozenset(
    {
        "HyperParameters",
        "Environment",
        "RuleParameters",
        "HookParameters",
        "ProfilingParameters",
        "CollectionParameters",
        "hyperparameters",
        "user_environment",
        "environment_variables",
        "parameters",
    }
)
COMMAND_LINE = "command"  # member of a process in a dump
_SURE = re.compile(r"SECRET|PASSW|CREDENTIAL|PRIVATE_?KEY|API_?KEY", re.IGNORECASE)
_LIKELY = re.compile(r"KEY|TOKEN", re.IGNORECASE)
_OF_TEXT = re.compile(r"TOKENI[SZ](?:ER|ATION|ED?)", re.IGNORECASE)  # tokens of text, no secrets
_NUMBER = re.compile(r"""["']?(?:-?[0-9.]{1,12}(?:e-?[0-9]{1,3})?|true|false|null|none)?["']?""", re.IGNORECASE)
_PASSWORD_IN_ADDRESS = re.compile(r"(\b[a-z][a-z0-9+.-]{0,20}://[^/\s:@]{0,100}):[^/\s@]{1,200}@", re.IGNORECASE)
_FLAG = re.compile(r"(--?[A-Za-z][\w.-]{0,100})(?:=(.*))?", re.DOTALL)


def is_secret(name: str, value: str) -> bool:
    """Whether a value should not be shown."""
    if _SURE.search(name):
        return True
    return bool(_LIKELY.search(_OF_TEXT.sub("", name))) and not _NUMBER.fullmatch(value)


def hide_secrets(document: Any) -> Any:
    """Return a copy of a plain document in which every value that looks like a secret is `(hidden)`."""
    if isinstance(document, Mapping):
        return {name: _hide_member(str(name), value) for name, value in document.items()}
    if isinstance(document, list | tuple):
        return _hide_in_arguments(document)
    return _without_passwords(document) if isinstance(document, str) else document


def hide_in_mapping(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping from names chosen by the user, with its secret values hidden."""
    return {
        name: SECRET_PLACEHOLDER if isinstance(value, str) and is_secret(name, value) else hide_secrets(value)
        for name, value in mapping.items()
    }


def _hide_member(name: str, value: Any) -> Any:
    if name in USER_MAPPINGS and isinstance(value, Mapping):
        return hide_in_mapping(value)
    if name == COMMAND_LINE and isinstance(value, str):
        return " ".join(_hide_in_arguments(value.split(" ")))
    return hide_secrets(value)


def _hide_in_arguments(items: Sequence[Any]) -> list[Any]:
    """Mask the values of secret flags in a list that may be a command line."""
    shown: list[Any] = []
    secret_flag = ""
    for item in items:
        flag = _FLAG.fullmatch(item) if isinstance(item, str) else None
        if secret_flag and flag is None and isinstance(item, str) and is_secret(secret_flag, item):
            shown.append(SECRET_PLACEHOLDER)
        elif flag is not None and flag[2] is not None and is_secret(flag[1], flag[2]):
            shown.append(f"{flag[1]}={SECRET_PLACEHOLDER}")
        else:
            shown.append(hide_secrets(item))
        secret_flag = flag[1] if flag is not None and flag[2] is None else ""
    return shown


def _without_passwords(text: str) -> str:
    return _PASSWORD_IN_ADDRESS.sub(rf"\1:{SECRET_PLACEHOLDER}@", text)
