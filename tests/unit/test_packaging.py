"""Declarations of the package as a user installs it: licence, commands, dependencies."""

import tomllib
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_licence_that_is_named_is_the_one_that_goes_along():
    assert (PROJECT["license"], PROJECT["license-files"]) == ("Apache-2.0", ["LICENSE"])
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text[:200]
    assert "Version 2.0, January 2004" in text[:200]
    assert text.rstrip().endswith("limitations under the License.")


def test_the_commands_that_are_installed_exist():
    for target in PROJECT["scripts"].values():
        module, _, function = target.partition(":")
        assert callable(getattr(import_module(module), function))


def test_images_of_training_programs_need_nothing_beside_clary():
    assert PROJECT["dependencies"] == []
    assert PROJECT["requires-python"] == ">=3.11"
