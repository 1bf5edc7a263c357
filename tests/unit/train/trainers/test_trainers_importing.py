"""Modules of libraries are patched when a program imports them, and not before; ranks without a GPU are counted."""

import importlib
import os
import sys
import types

import pytest

from clary.train.trainers import installing
from clary.train.trainers.accelerate_cpu import mend_state
from clary.train.trainers.arguments import choose_devices_by
from clary.train.trainers.composer_nodes import name_node
from clary.train.trainers.importing import MendingFinder, mend_when_imported


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A package `pretended` on the path; the import finder is removed after the test."""
    folder = tmp_path / "pretended"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "inner.py").write_text("word = 'as written'\n")
    (folder / "other.py").write_text("word = 'as written'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "pretended"]:
        del sys.modules[name]


def mend(module):
    module.word = f"{module.word}, then mended"


def test_a_module_is_patched_once_its_own_code_has_run(library):
    mend_when_imported({"pretended.inner": mend})
    assert "pretended.inner" not in sys.modules
    assert importlib.import_module("pretended.inner").word == "as written, then mended"
    assert importlib.import_module("pretended.other").word == "as written"


def test_an_imported_module_is_patched_at_once(library):
    module = importlib.import_module("pretended.inner")
    mend_when_imported({"pretended.inner": mend})
    assert module.word == "as written, then mended"


def test_a_module_that_is_being_imported_is_patched_at_the_end_of_its_import(library, tmp_path):
    """Like transformers.trainer, whose import loads torch; the end of torch's import calls the patch function."""
    middle = "import test_calls\ntest_calls.asks()\nassert 'word' not in globals()\n"
    (tmp_path / "pretended" / "inner.py").write_text(f"{middle}word = 'as written'\n")
    (tmp_path / "pretended" / "other.py").write_text(f"{middle}raise OSError('of its own')\n")
    calls = types.ModuleType("test_calls")
    calls.asks = lambda: [mend_when_imported({"pretended.inner": mend, "pretended.other": mend}) for _ in range(2)]
    sys.modules["test_calls"] = calls
    try:
        assert importlib.import_module("pretended.inner").word == "as written, then mended"
        with pytest.raises(OSError, match="of its own"):
            importlib.import_module("pretended.other")
    finally:
        del sys.modules["test_calls"]


def test_a_missing_module_raises_the_usual_error(library):
    mend_when_imported({"pretended.gone": mend})
    with pytest.raises(ModuleNotFoundError, match=r"pretended\.gone"):
        importlib.import_module("pretended.gone")


def added_by_install(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    installing.install()
    return [set(finder._mends) for finder in sys.meta_path if isinstance(finder, MendingFinder)]


def test_a_program_that_is_no_rank_gets_no_finder(monkeypatch):
    for name in ("LOCAL_RANK", "SM_FRAMEWORK_PARAMS"):
        monkeypatch.delenv(name, raising=False)
    assert added_by_install(monkeypatch) == []


def test_a_rank_has_only_accelerate_composer_and_deepspeed_patched(monkeypatch):
    monkeypatch.delenv("SM_FRAMEWORK_PARAMS", raising=False)
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert added_by_install(monkeypatch) == [
        {"accelerate.state", "composer.utils.dist", "deepspeed.ops.op_builder.builder"}
    ]


@pytest.mark.parametrize("text", ["{", "[]", '{"sagemaker_distributed_dataparallel_enabled": false}'])
def test_empty_or_invalid_parameters_are_ignored(monkeypatch, text):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("SM_FRAMEWORK_PARAMS", text)
    assert added_by_install(monkeypatch) == []


class Kind:
    """Stands for accelerate's DistributedType, whose members have the type itself."""

    MULTI_CPU = "multi"


def state_module(backend):
    class PartialState:
        def _prepare_backend(self, cpu=False):
            return backend, Kind()

    return types.SimpleNamespace(PartialState=PartialState)


@pytest.mark.parametrize(
    ("backend", "variables", "expected"),
    [
        (None, {"LOCAL_RANK": "0", "WORLD_SIZE": "2"}, "gloo"),
        (None, {"LOCAL_RANK": "0", "WORLD_SIZE": "1"}, None),
        (None, {"WORLD_SIZE": "2"}, None),
        ("nccl", {"LOCAL_RANK": "0", "WORLD_SIZE": "2"}, "nccl"),
    ],
)
def test_a_rank_without_a_backend_joins_over_gloo(monkeypatch, backend, variables, expected):
    for name in ("LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    module = state_module(backend)
    mend_state(module)
    found, kind = module.PartialState()._prepare_backend(cpu=False)
    assert found == expected
    assert (kind == "multi") is (expected == "gloo")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"GROUP_RANK": "1"}, "1"),
        ({"GROUP_RANK": "1", "NODE_RANK": "3"}, "3"),
        ({}, None),
    ],
)
def test_composer_gets_the_number_of_its_host(monkeypatch, variables, expected):
    monkeypatch.setattr(os, "environ", dict(variables))
    name_node(types.ModuleType("composer.utils.dist"))
    assert os.environ.get("NODE_RANK") == expected


class CachedProperty(property):
    """Like the property of older versions of transformers: a property under another name."""


@pytest.mark.parametrize("is_python_s", [True, False])
def test_devices_are_chosen_by_the_function_in_every_version(is_python_s):
    import functools

    cached = functools.cached_property if is_python_s else CachedProperty

    class TrainingArguments:
        @cached
        def _setup_devices(self):
            return "cuda"

    module = types.SimpleNamespace(TrainingArguments=TrainingArguments)
    choose_devices_by(module, lambda arguments, otherwise: ("cpu", otherwise(arguments)))
    assert TrainingArguments()._setup_devices == ("cpu", "cuda")


@pytest.mark.parametrize("module", [types.SimpleNamespace(), types.SimpleNamespace(TrainingArguments=object)])
def test_a_version_without_the_patched_property_is_not_changed(module):
    choose_devices_by(module, lambda arguments, otherwise: pytest.fail("called"))


def test_a_second_call_replaces_the_first(library):
    mend_when_imported({"pretended.inner": mend})
    mend_when_imported({"pretended.inner": mend})
    assert sum(isinstance(finder, MendingFinder) for finder in sys.meta_path) == 1
    assert importlib.import_module("pretended.inner").word == "as written, then mended"
