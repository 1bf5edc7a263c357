"""The folder with Clary's train side for jobs: its content, and the precedence of the user's own packages."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import clary
from clary.agent.environments.train_library import PACKAGE_FOLDER, library_folder, write_train_library
from clary.contract.ml_tree import MlTree

REGISTRATION = "train/collective/adapters/torch/registration.py"
SEES = "import json, sys, clary, clary.train.collective as c; print(json.dumps([c.__file__, clary.__file__]))"


@pytest.fixture
def library(tmp_path: Path) -> Path:
    tree = MlTree(tmp_path / "ml")
    write_train_library(tree)
    write_train_library(tree)
    return library_folder(tree)


def run(code: str, *, path: list[Path], site: Path | None = None, **variables: str) -> str:
    """Run code with `path` as PYTHONPATH and `site` as site-packages; return its output."""
    prologue = f"import sys; sys.path.append({str(site)!r})\n" if site is not None else ""
    environment = {"PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONDONTWRITEBYTECODE": "1", **variables}
    done = subprocess.run(
        [sys.executable, "-S", "-c", prologue + code], env=environment, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def write_package(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_the_folder_holds_the_train_side_the_foreign_names_and_nothing_else(library: Path) -> None:
    assert sorted(path.name for path in library.iterdir()) == [
        "clary",
        f"clary-{clary.__version__}.dist-info",
        "clary_autoload.py",
        "clary_cuda_on_cpu",
        "clary_rehearsal.py",
        "clary_toolkit",
        "horovod",
        "sagemaker_containers",
        "sagemaker_training",
        "sagemaker_xgboost_container",
        "smddpcommon",
        "smdebug",
        "smdistributed",
    ]
    assert sorted(path.name for path in (library / "clary").iterdir()) == ["base", "contract", "train"]
    assert (library / "clary" / "train").resolve() == (PACKAGE_FOLDER / "train").resolve()
    assert not (library / "smdistributed" / "__init__.py").exists()


def test_an_interrupted_folder_is_completed(tmp_path: Path) -> None:
    tree = MlTree(tmp_path / "ml")
    write_train_library(tree)
    library = library_folder(tree)
    (last,) = library.glob("clary-*.dist-info/entry_points.txt")
    whole = last.read_text()
    for left in (None, whole[:-1], whole + " "):
        (library / "smdebug").unlink()
        last.unlink() if left is None else last.write_text(left)
        write_train_library(tree)
        assert (library / "smdebug").is_dir()
        assert last.read_text() == whole


def test_programs_import_the_train_side_and_neither_agent_nor_service(library: Path) -> None:
    wings = run(
        "import importlib.util, json, clary.train._native.errors\n"
        "print(json.dumps([importlib.util.find_spec(f'clary.{n}') is not None for n in "
        "('train', 'contract', 'base', 'agent', 'control')]))",
        path=[library],
    )
    assert json.loads(wings) == [True, True, True, False, False]


def test_the_distribution_is_found_with_its_entry_point(library: Path) -> None:
    code = (
        "from importlib.metadata import entry_points, version\n"
        "print(version('clary'), [(e.name, e.value, e.load().__name__) for e in entry_points(group='torch.backends')])"
    )
    expected = [
        ("clary_smddp", "clary_autoload:register", "register"),
        ("clary_cuda_on_cpu", "clary_cuda_on_cpu:register", "register"),
        ("clary_rehearsal", "clary_rehearsal:register", "register"),
    ]
    assert run(code, path=[library]) == f"{clary.__version__} {expected}"


def test_a_clary_of_the_users_own_wins_wherever_it_is_installed(library: Path, tmp_path: Path) -> None:
    site = write_package(
        tmp_path / "site",
        {"clary/__init__.py": "", "clary/train/__init__.py": "", "clary/train/collective/__init__.py": ""},
    )
    files = json.loads(run(SEES, path=[library], site=site))
    assert files == [str(site / "clary/train/collective/__init__.py"), str(site / "clary/__init__.py")]
    ours, namespace = json.loads(run(SEES, path=[library]))
    assert (Path(ours), namespace) == (library / "clary/train/collective/__init__.py", None)


@pytest.mark.parametrize("kind", ["regular package", "namespace package"])
def test_smdistributed_of_aws_wins_wherever_it_is_installed(library: Path, tmp_path: Path, kind: str) -> None:
    site = write_package(
        tmp_path / "site",
        {
            "smdistributed/dataparallel/__init__.py": "__version__ = 'FakeAws'",
            "smdistributed/dataparallel/torch/__init__.py": "",
            "smdistributed/dataparallel/torch/torch_smddp.py": "registered = 'by FakeAws'",
        },
    )
    if kind == "regular package":
        (site / "smdistributed" / "__init__.py").touch()
    code = (
        "import smdistributed.dataparallel, smdistributed.dataparallel.torch.torch_smddp as t\n"
        "from smdistributed import dataparallel as d\n"
        "import sys; print(d.__version__, t.registered, d is sys.modules['smdistributed.dataparallel'])"
    )
    assert run(code, path=[library], site=site) == "FakeAws by FakeAws True"


def test_other_parts_of_smdistributed_can_be_imported_beside_ours(library: Path, tmp_path: Path) -> None:
    site = write_package(tmp_path / "site", {"smdistributed/modelparallel/__init__.py": "__version__ = 'FakeSmp'"})
    code = (
        "import smdistributed.modelparallel as m, smdistributed.dataparallel as d; print(m.__version__, d.__version__)"
    )
    assert run(code, path=[library], site=site) == "FakeSmp 2.6.0"


FAKE_CLARY = {
    "train/__init__.py": "",
    "contract/__init__.py": "",
    "base/__init__.py": "",
    "train/collective/__init__.py": "",
    "train/collective/adapters/__init__.py": "",
    "train/collective/adapters/torch/__init__.py": "",
    REGISTRATION: "def autoload(): print('FakeAdapter registers')",
}
AUTOLOAD = (
    "from importlib.metadata import entry_points\n"
    "for entry in entry_points(group='torch.backends'): entry.load()()\n"
    "print('done')"
)


@pytest.fixture
def fake_library(tmp_path: Path) -> Path:
    """Return the library folder made from a fake clary package and the real foreign names."""
    package = write_package(tmp_path / "fake" / "clary", FAKE_CLARY)
    shutil.copytree(PACKAGE_FOLDER / "compat", package / "compat")
    tree = MlTree(tmp_path / "fake-ml")
    write_train_library(tree, package_folder=package)
    return library_folder(tree)


def test_torch_registers_the_backend_when_it_is_imported(fake_library: Path) -> None:
    assert run(AUTOLOAD, path=[fake_library]) == "FakeAdapter registers\ndone"


@pytest.mark.parametrize("is_regular", [True, False])
def test_the_backend_is_left_to_aws_where_its_library_is_installed(
    fake_library: Path, tmp_path: Path, is_regular: bool
) -> None:
    site = write_package(tmp_path / "site", {"smdistributed/dataparallel/__init__.py": "raise SystemExit('imported')"})
    if is_regular:
        (site / "smdistributed" / "__init__.py").write_text("raise SystemExit('imported')")
    assert run(AUTOLOAD, path=[fake_library], site=site) == "done"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("clary.py", "done"),
        ("clary/__init__.py", "done"),
        ("clary/train.py", "done"),
        ("smdistributed.py", "FakeAdapter registers\ndone"),
    ],
)
def test_importing_torch_never_fails_for_a_name_of_the_users(
    fake_library: Path, tmp_path: Path, name: str, expected: str
) -> None:
    code_folder = write_package(tmp_path / "code", {name: "raise SystemExit('the script runs a second time')"})
    if name == "clary/train.py":
        (code_folder / name).write_text("")
    assert run(AUTOLOAD, path=[code_folder, fake_library]) == expected


def test_a_python_that_is_too_old_imports_torch_without_the_backend(fake_library: Path) -> None:
    code = f"import sys; sys.version_info = (3, 9, 18)\n{AUTOLOAD}"
    assert run(code, path=[fake_library]) == "done"
    code = (
        "import sys; sys.version_info = (3, 9, 18)\n"
        "try:\n    import smdistributed.dataparallel\n"
        "except ImportError as error: print(error)"
    )
    assert "needs Python 3.10 or newer" in run(code, path=[fake_library])


FAKE_TORCH = {
    "torch/__init__.py": (
        "from importlib.metadata import entry_points\n"
        "for entry in entry_points(group='torch.backends'): entry.load()()\n"
    )
}
FAKE_SAGEMAKER = {
    "train/parallel/__init__.py": "",
    "train/parallel/fsdp/__init__.py": "",
    "train/parallel/fsdp/session.py": "def init(): return 'FakeEngine'",
    "train/parallel/fsdp/state.py": "state = is_initialized = None",
    "train/parallel/fsdp/training.py": "transform = clip_grad_norm_ = None",
}
TSM = "import torch.sagemaker as tsm, torch; print(tsm.init(), torch.sagemaker is tsm)"


def test_torch_sagemaker_is_imported_without_touching_torchs_files(fake_library: Path, tmp_path: Path) -> None:
    write_package(tmp_path / "fake" / "clary", FAKE_SAGEMAKER)
    site = write_package(tmp_path / "site", FAKE_TORCH)
    code = f"{TSM}\nimport torch.sagemaker.grad_norm as g; print(g.__name__, g.__all__)"
    found = run(code, path=[fake_library], site=site)
    expected = "FakeEngine True\ntorch.sagemaker.grad_norm ['clip_grad_norm_']"
    assert found.removeprefix("FakeAdapter registers\n") == expected
    assert sorted(path.name for path in (site / "torch").iterdir()) == ["__init__.py"]


def test_torch_sagemaker_of_aws_wins_where_it_is_installed(fake_library: Path, tmp_path: Path) -> None:
    site = write_package(
        tmp_path / "site", {**FAKE_TORCH, "torch/sagemaker/__init__.py": "def init(): return 'FakeAws'"}
    )
    assert run(TSM, path=[fake_library], site=site).endswith("FakeAws True")


def test_torch_sagemaker_says_which_python_it_needs(fake_library: Path, tmp_path: Path) -> None:
    site = write_package(tmp_path / "site", FAKE_TORCH)
    code = (
        "import sys; sys.version_info = (3, 9, 18)\n"
        "try:\n    import torch.sagemaker\n"
        "except ImportError as error: print(error)"
    )
    assert "needs Python 3.10 or newer" in run(code, path=[fake_library], site=site)
