"""Declarations of the package as a user installs it: licence, commands, dependencies."""

import tomllib
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_declared_licence_is_the_one_in_the_package():
    assert (PROJECT["license"], PROJECT["license-files"]) == ("Apache-2.0", ["LICENSE"])
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text[:200]
    assert "Version 2.0, January 2004" in text[:200]
    assert text.rstrip().endswith("limitations under the License.")


def test_the_installed_commands_exist():
    for target in PROJECT["scripts"].values():
        module, _, function = target.partition(":")
        assert callable(getattr(import_module(module), function))


def test_the_package_has_no_dependencies():
    assert PROJECT["dependencies"] == []
    assert PROJECT["requires-python"] == ">=3.11"
