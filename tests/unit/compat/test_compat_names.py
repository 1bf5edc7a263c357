"""The foreign names as files: their imports, the oldest Python that parses them, and launchers that inspect them."""

import ast
import importlib
import inspect
import runpy
import sys
from pathlib import Path

import pytest

import clary
from clary.contract.settings.hyperparameters import CUDA_ON_CPU_VARIABLE
from clary.train._native import errors

COMPAT = Path(clary.__file__).parent / "compat"
FILES = sorted(COMPAT.rglob("*.py"))
# Imported by every version of the interpreter: torch's autoload hook, and the module with the message for old ones.
ANY_PYTHON = (
    "clary_autoload.py",
    "clary_cuda_on_cpu/__init__.py",
    "clary_cuda_on_cpu/names.py",
    "clary_cuda_on_cpu/mode.py",
    "clary_cuda_on_cpu/streams.py",
    "clary_cuda_on_cpu/answers.py",
    "clary_cuda_on_cpu/cuda_table.py",
    "clary_cuda_on_cpu/deepspeed_adam.py",
    "clary_cuda_on_cpu/devices.py",
    "clary_cuda_on_cpu/libraries.py",
    "clary_cuda_on_cpu/refusing.py",
    "clary_cuda_on_cpu/wrapping.py",
    "torch_sagemaker/__init__.py",
    "sagemaker_xgboost_container/__init__.py",
    "smdebug/__init__.py",
    "smdistributed/giving_way.py",
    "smdistributed/dataparallel/__init__.py",
    "smdistributed/modelparallel/__init__.py",
    *(
        str(path.relative_to(COMPAT))
        for package in ("clary_toolkit", "sagemaker_training", "sagemaker_containers", "smddpcommon")
        for path in sorted((COMPAT / package).rglob("*.py"))
    ),
)
ALLOWED = (
    "clary.train",
    "smdistributed.dataparallel",
    "horovod",
    "clary_toolkit",
    "torch",
    "tensorflow",
    "mxnet",
    "numpy",
    "cloudpickle",  # imported only if a program's environment has it
)


def imported_by(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module or "")
    return names


def test_the_list_of_foreign_names_is_not_empty() -> None:
    assert len(FILES) >= 8


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(COMPAT)))
def test_foreign_names_import_only_the_train_side(path: Path) -> None:
    for name in imported_by(path):
        is_allowed = name.partition(".")[0] in sys.stdlib_module_names or any(
            name == root or name.startswith(f"{root}.") for root in ALLOWED
        )
        assert is_allowed, f"{path} imports {name}"


@pytest.mark.parametrize("name", ANY_PYTHON)
def test_modules_that_every_python_imports_compile_with_the_oldest(name: str) -> None:
    ast.parse((COMPAT / name).read_text(), feature_version=(3, 8))


def test_jobs_set_the_variable_that_the_rehearsal_reads() -> None:
    names = runpy.run_path(str(COMPAT / "clary_cuda_on_cpu" / "names.py"))
    assert names["VARIABLE"] == CUDA_ON_CPU_VARIABLE


def test_launchers_find_the_classes_of_errors_by_name() -> None:
    from clary.compat.smdistributed.dataparallel import exceptions

    # As sagemaker-training 5.1.4 does in `smdataparallel.get_dataparallel_exception_classes`.
    found = {name for name in dir(exceptions) if inspect.isclass(getattr(exceptions, name))}
    assert found == set(exceptions.__all__)
    theirs = vars(errors).items()
    assert found == {
        name for name, value in theirs if isinstance(value, type) and issubclass(value, errors.CollectiveError)
    }


def test_the_tensorflow_interface_needs_only_tensorflow() -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'tensorflow'"):
        importlib.import_module("clary.compat.smdistributed.dataparallel.tensorflow")


def test_smdistributed_is_a_namespace_package() -> None:
    assert not (COMPAT / "smdistributed" / "__init__.py").exists()
