"""`clary environments`: lists, makes and removes the Python environments that stand for images."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from functools import partial
from typing import Any

from clary.agent.environments.installation import find_uv
from clary.agent.environments.package_index import uv_index_variables
from clary.base.errors import EngineError
from clary.cli.contexts import require_local
from clary.cli.tables import table
from clary.control.engines.added_environments import add_environment, added_environments, parse_wish, remove_environment
from clary.control.engines.image_tags import PYTHON
from clary.control.engines.images import DEFAULT_ENVIRONMENT, default_python, no_torch
from clary.control.engines.interpreters import InterpreterProbe
from clary.control.settings import Settings, load_settings

_INDEX_BUILD = "index"  # stands for the build of torch that the package index offers by default


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "environments", help="list the environments that stand for images, add one like an image"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_list)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listing = actions.add_parser("list", help="list them (the default)")
    listing.set_defaults(run=run_list)
    add = actions.add_parser("add", help="make one with uv, as pytorch:2.8-py312 or an image's name")
    add.add_argument("image", metavar="IMAGE", help="FRAMEWORK:VERSION-pyVERSION, or an image of AWS's with its tag")
    add.add_argument(
        "--with", dest="further", action="append", default=[], metavar="REQUIREMENT", help="install this too"
    )
    add.add_argument(
        "--torch-backend",
        metavar="NAME",
        help=f"build of torch as uv names it (cpu, cu128, auto); {_INDEX_BUILD}: the package index's default. "
        "Default: cpu without an NVIDIA driver, else that of the index",
    )
    add.set_defaults(run=run_add)
    remove = actions.add_parser("remove", help="remove an added environment")
    remove.add_argument("name", metavar="NAME", help="as the list has it")
    remove.set_defaults(run=run_remove)
    for action in (listing, add, remove):  # the option may precede or follow the action
        action.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")


def run_list(options: argparse.Namespace) -> int:
    """Print one line for each environment; return 1 if the interpreter of an environment does not run."""
    settings = _settings()
    home = settings.home_folder
    probe = InterpreterProbe(home=home)
    rows = []
    for name, (python, source) in _environments(settings, probe).items():
        try:
            modules, problem = dict(probe.modules(python)), ""
        except EngineError as error:
            modules, problem = {}, error.message
        rows.append({"name": name, "source": source, "python": python, "modules": modules, "problem": problem})
    if options.json:
        print(json.dumps(rows, indent=2))
    elif not rows:
        print(no_torch(probe))
    else:
        header = ("NAME", "FROM", "HAS", "INTERPRETER")
        print(table(header, [(str(row["name"]), str(row["source"]), _words(row), str(row["python"])) for row in rows]))
    return int(any(row["problem"] for row in rows))


def run_add(options: argparse.Namespace) -> int:
    """Make an environment."""
    settings = _settings()
    name, wanted = parse_wish(options.image)
    backend = options.torch_backend
    if backend is None:
        backend = "cpu" if wanted.module == "torch" and shutil.which("nvidia-smi") is None else _INDEX_BUILD
    variables = {**os.environ, **uv_index_variables(os.environ, sys.prefix)}
    began_s = time.monotonic()
    made = add_environment(
        settings.home_folder,
        name,
        wanted,
        uv=find_uv(os.environ),
        variables=variables,
        further=options.further,
        torch_backend="" if backend == _INDEX_BUILD else backend,
        say=partial(print, file=sys.stderr) if options.json else print,
    )
    if options.json:
        print(json.dumps({"name": made.name, "python": made.python}, indent=2))
        return 0
    print(f"{made.name} stands after {time.monotonic() - began_s:.0f} s: {made.python}")
    print("Images of these versions run in it from now on.")
    return 0


def run_remove(options: argparse.Namespace) -> int:
    """Remove an environment."""
    remove_environment(_settings().home_folder, options.name)
    is_removed = f"{options.name} is removed; a job that runs in it may fail"
    print(json.dumps({"name": options.name}, indent=2) if options.json else is_removed)
    return 0


def _settings() -> Settings:
    settings = load_settings()
    require_local(settings, "environments")
    return settings


def _environments(settings: Settings, probe: InterpreterProbe) -> dict[str, tuple[str, str]]:
    """Return name -> (interpreter, source), with the precedence by which images are resolved."""
    home = settings.home_folder
    found = {one.name: (one.python, "added") for one in added_environments(home)}
    found |= {name: (python, "settings") for name, python in settings.environments.items()}
    python = default_python(settings, probe)
    if python is not None:
        is_set = DEFAULT_ENVIRONMENT in settings.environments or bool(settings.default_python)
        found[DEFAULT_ENVIRONMENT] = (python, "settings" if is_set else "found")
    return dict(sorted(found.items()))


def _words(row: dict[str, Any]) -> str:
    if row["problem"]:
        return "does not run"
    modules = dict(row["modules"])
    python = modules.pop(PYTHON, "")
    return ", ".join([f"Python {python}", *(f"{name} {version}".strip() for name, version in modules.items())])
