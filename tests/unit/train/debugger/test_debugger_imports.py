"""Imports of the debugger in a program: no module that reads trials, contacts a store or evaluates rules."""

import subprocess
import sys
from pathlib import Path

import pytest
from torch_programs import ROOT, TRAIN_PYTHON

from clary.compat.smdebug import exceptions
from clary.train import debugger

LIMIT_S = 60.0
STORE = {"http.client", "ssl", "xml.etree.ElementTree", "pyexpat", "concurrent.futures", "tempfile"}
READING = {
    f"clary.train.debugger.{name}"
    for name in ("rule", "rules", "trial", "trial_places", "trial_reader", "refreshing", "saved_tensor", "s3_files")
} | {"clary.train.debugger.reading.s3_access", "clary.train.debugger.reading.object_blocks"}
TOLD = "\nimport sys; print(*sorted(sys.modules))"


def loaded(python: str | Path, program: str) -> set[str]:
    """Return the modules that a program has imported at its end."""
    done = subprocess.run(
        [str(python), "-c", program + TOLD],
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'src/clary/compat'}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_the_library_alone_imports_neither_a_client_of_a_store_nor_a_reader() -> None:
    found = loaded(sys.executable, "import clary.train.debugger, smdebug")
    assert "clary.train.debugger.collection" in found
    assert not found & (STORE | READING)


@pytest.mark.parametrize(
    "program",
    [
        "import smdebug.pytorch as smd; assert smd.Hook",
        "from clary.train.debugger.automatic import _install, HookConfiguration\n"
        "_install(HookConfiguration(dry_run=True))\n"
        "from clary.train.debugger.hook import get_hook; assert get_hook().is_automatic",
    ],
)
def test_a_program_that_saves_imports_no_reader(program: str) -> None:
    found = loaded(TRAIN_PYTHON, program)
    assert "clary.train.debugger.hook" in found
    assert not found & READING  # torch itself imports clients of HTTP


def test_modules_are_imported_on_demand() -> None:
    program = """
import smdebug.pytorch as smd
from clary.train import debugger
from clary.train.debugger import *
from smdebug.pytorch import create_trial, modes
assert debugger.create_trial is create_trial is smd.create_trial
assert [debugger.modes, modes] == [smd.modes] * 2 and modes.TRAIN
assert issubclass(debugger.Rule, object) and Trial is debugger.Trial
assert set(debugger.__all__) <= set(dir(debugger))
for name in debugger.__all__ + smd.__all__:
    assert getattr(debugger if name in debugger.__all__ else smd, name) is not None
"""
    assert "clary.train.debugger.reading.trial" in loaded(TRAIN_PYTHON, program)


def test_names_of_smdebug_s_inner_modules_are_those_of_the_package() -> None:
    program = """
import smdebug, smdebug.pytorch as smd
from smdebug.core.collection import CollectionKeys
from smdebug.pytorch.collection import *
from smdebug.pytorch.hook import *
from smdebug.pytorch.singleton_utils import del_hook, get_hook, set_hook
assert (Hook, Collection) == (smd.Hook, smd.Collection)
assert CollectionKeys is smd.CollectionKeys is smdebug.CollectionKeys
assert (del_hook, get_hook, set_hook) == (smd.del_hook, smd.get_hook, smd.set_hook)
assert type(Hook("tensors", dry_run=True).collection_manager) is CollectionManager
"""
    assert not loaded(TRAIN_PYTHON, program) & READING


def test_an_unknown_name_raises_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = debugger.Nothing
    assert exceptions.modes is debugger.modes
