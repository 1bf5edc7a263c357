"""pip's configuration of a machine: its files, then its variables.

Where: the agent translates it into uv's options when it installs requirements; the service lets hosts reach the package
indexes that it names. Standard library only.
Source: pip documentation, "Configuration".
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from pathlib import Path

_SECTIONS = ("global", "install")
_OPTIONS = ("index-url", "extra-index-url", "find-links", "trusted-host", "no-index", "cert")


def pip_options(machine: Mapping[str, str], prefix: str | None) -> dict[str, str]:
    """Read pip's options from its files, where later files override earlier files, then from its variables.

    Args:
        machine: variables of the process that would run pip: HOME, PIP_*.
        prefix: root of a Python environment, which may have a pip.conf of its own; None without an environment.
    """
    home = Path(machine.get("HOME", "/"))
    config_home = Path(machine.get("XDG_CONFIG_HOME", home / ".config"))
    files = [
        Path("/etc/xdg/pip/pip.conf"),
        Path("/etc/pip.conf"),
        home / ".pip/pip.conf",
        config_home / "pip/pip.conf",
    ]
    if prefix is not None:
        files.append(Path(prefix, "pip.conf"))
    if "PIP_CONFIG_FILE" in machine:
        files.append(Path(machine["PIP_CONFIG_FILE"]))
    options: dict[str, str] = {}
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, configparser.Error):
            continue  # absent, or not in pip's format, which pip itself reports
        for section in _SECTIONS:
            if parser.has_section(section):
                options |= {name: parser.get(section, name) for name in _OPTIONS if parser.has_option(section, name)}
    for name in _OPTIONS:
        variable = f"PIP_{name.replace('-', '_').upper()}"
        if machine.get(variable):
            options[name] = machine[variable]
    return options
