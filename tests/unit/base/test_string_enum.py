"""Enums whose members are texts: the class for Python before 3.11 behaves as the standard library's."""

import json
import runpy
import sys
from enum import StrEnum as Standard
from pathlib import Path

import pytest

from clary.base import string_enum


@pytest.fixture(params=["standard", "older"])
def kind(request, monkeypatch):
    if request.param == "standard":
        assert string_enum.StrEnum is Standard
        return Standard
    monkeypatch.setattr(sys, "version_info", (3, 10, 14, "final", 0))
    older = runpy.run_path(str(Path(string_enum.__file__)))["StrEnum"]
    assert older is not Standard
    return older


def test_members_are_their_texts(kind):
    colours = kind("colours", {"RED": "red", "BLUE": "blue"})
    assert (str(colours.RED), f"{colours.RED}", f"{colours.RED:>5}") == ("red", "red", "  red")
    assert colours.RED == "red"
    assert {"red": 1}[colours.RED] == 1
    assert json.dumps([colours.RED]) == '["red"]'
    assert ", ".join(colours) == "red, blue"
    assert isinstance(colours.RED, str)


def test_members_are_found_by_text_and_shown_by_name(kind):
    colours = kind("colours", {"RED": "red"})
    assert colours("red") is colours.RED
    assert repr(colours.RED) == "<colours.RED: 'red'>"
    with pytest.raises(ValueError, match="'green' is not a valid colours"):
        colours("green")
