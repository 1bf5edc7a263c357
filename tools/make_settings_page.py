"""Write `docs/settings.md` from the declarations in `clary.control.settings`.

Run: `python tools/make_settings_page.py`; with `--check` it changes nothing and fails if the page is out of date.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import MISSING, Field
from pathlib import Path
from typing import Any

from clary.control.settings import FIELDS, SETTINGS_FILE, Settings, type_of, variable_of

TARGET = Path(__file__).parent.parent / "docs/settings.md"
TYPES = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    dict: "table",
    tuple: "list of texts",
}
HEAD = f"""# Settings

Written by `python tools/make_settings_page.py` from `src/clary/control/settings.py`; change it there.

A setting is a line of `{SETTINGS_FILE}` in the state folder (`~/.clary`, or where `CLARY_HOME` points), or a variable
in the environment of `clary up`. The variable wins over the file, the file over the default. Durations (`_s`) are in
seconds, sizes (`_bytes`) in bytes. A wrong value, or a name that is not listed here, is refused with the file, the
setting and what was expected; commands end with exit code 2 then.

A change takes effect with `clary restart`, which stops no job. Settings that have to stay while jobs have hosts are
refused by name then ([commands.md](commands.md#upgrades-and-changed-settings)).

| setting | variable | type | default | what it sets |
|---|---|---|---|---|
"""
EXAMPLE = f"""
## Example

`~/.clary/{SETTINGS_FILE}`:

```toml
port = 4570
stop_grace_s = 30.0
default_python = "/opt/torch/bin/python"

[images]
"pytorch-training:2.8*" = "torch28"
"registry.example/team/own:*" = "own"

[environments]
torch28 = "/opt/torch28/bin/python"
own = "/home/me/project/.venv/bin/python"

[file_systems]
"fs-0123456789abcdef0" = {{ path = "/srv/datasets", access = "ro" }}

[instance_types."ml.p4d.24xlarge"]
gpus = 2
rate_mbit_s = 10000
delay_ms = 0.5
```
"""


def page() -> str:
    """Return the text of the page."""
    return HEAD + "".join(_row(setting) for setting in FIELDS) + EXAMPLE


def main() -> int:
    """Write the page, or with --check compare it."""
    parser = argparse.ArgumentParser(description="Write docs/settings.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    if not parser.parse_args().check:
        TARGET.write_text(page(), encoding="utf-8")
        return 0
    if TARGET.exists() and TARGET.read_text(encoding="utf-8") == page():
        return 0
    print(f"{TARGET} is out of date: run python tools/make_settings_page.py", file=sys.stderr)
    return 1


def _row(setting: Field[Any]) -> str:
    kind = type_of(setting.name)
    # Nested tables do not fit into a variable, and the folder of the file cannot be named in the file.
    name = "" if setting.name == "home" else f"`{setting.name}`"
    variable = "" if kind is dict else f"`{variable_of(setting.name)}`"
    return f"| {name} | {variable} | {TYPES[kind]}{_bounds(setting)} | {_default(setting)} | {_help(setting)} |\n"


def _bounds(setting: Field[Any]) -> str:
    least, most = setting.metadata.get("least"), setting.metadata.get("most")
    if most is not None:
        return f", {least} to {most}"
    return "" if least is None else f", at least {least}"


def _default(setting: Field[Any]) -> str:
    if setting.default is MISSING:
        return "empty"
    return f"`{json.dumps(getattr(Settings, setting.name))}`"


def _help(setting: Field[Any]) -> str:
    return str(setting.metadata["help"]).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
