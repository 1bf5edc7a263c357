"""The console's modules: all exist and load at once; no module writes markup or names another host."""

import re

import pytest

from clary.control.server.console_files import FOLDER, MEDIA_TYPES

MODULES = sorted(path for path in FOLDER.rglob("*.js") if path.name != "theme.js")
STYLES = sorted(FOLDER.rglob("*.css"))
INDEX = (FOLDER / "index.html").read_text()
IMPORT = re.compile(r'^(?:import|export) .*? from "([^"]+)";$', re.MULTILINE)
# Calls that turn text into markup or code. Names, logs and metrics of jobs are hostile: pages make text nodes.
MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc|DOMParser|\beval\(|new Function")
ADDRESS = re.compile(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}")
NAMESPACE = "http://www.w3.org/2000/svg"  # is compared and never requested


def address_of(path):
    return f"/console/{path.relative_to(FOLDER).as_posix()}"


def test_the_index_loads_every_module_and_style_at_once_and_no_other_file():
    asked = set(re.findall(r'(?:href|src)="(/[^"]+)"', INDEX))
    there = {address_of(path) for path in (*MODULES, *STYLES, FOLDER / "theme.js", FOLDER / "mark.svg")}
    assert asked == there


def test_the_index_has_no_inline_script_or_style():
    assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son[a-z]+=", INDEX)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_module_imports_existing_files_and_writes_no_markup(path):
    text = path.read_text()
    for name in IMPORT.findall(text):
        assert (path.parent / name).resolve().is_file(), f"{path.name} imports {name}, which is not there"
    assert not MARKUP.search(text), "text of jobs must come into a page as text nodes (base/element.js)"


@pytest.mark.parametrize("path", [*MODULES, *STYLES], ids=lambda path: path.name)
def test_no_file_names_another_host(path):
    assert not ADDRESS.search(path.read_text().replace(NAMESPACE, ""))


def test_every_file_has_a_known_media_type():
    assert {path.suffix for path in FOLDER.rglob("*") if path.is_file()} <= set(MEDIA_TYPES)
