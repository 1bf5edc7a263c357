"""The shim of Keras: where the image had Keras 2, `import keras` gives Keras 2 from `tf_keras`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clary.agent.launchers.shim_files import RANK_SHIM
from needs import VENVS

ON = {"CLARY_KERAS_2": "1", "TF_USE_LEGACY_KERAS": "1"}
PROGRAM = "import keras\nfrom keras.layers import Dense\nprint(keras.__version__, Dense, keras.__spec__.name)\n"


def run(folder: Path, program: str, python: str = sys.executable, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(program)
    return subprocess.run(
        [python, RANK_SHIM, str(folder / "program.py")],
        env={"PATH": os.environ["PATH"], "TF_CPP_MIN_LOG_LEVEL": "3", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with two packages that stand in for Keras 3 and Keras 2."""
    for name, version in (("keras", "3.15"), ("tf_keras", "2.21")):
        (tmp_path / name / "layers").mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text(f"__version__ = '{version}'\n")
        (tmp_path / name / "layers/__init__.py").write_text(f"Dense = 'Dense of {name}'\n")
    (tmp_path / "keras/ops.py").write_text("")
    return tmp_path


def test_keras_is_keras_2_where_the_variable_is_set(folder: Path) -> None:
    done = run(folder, PROGRAM + "import sys\nassert sys.modules['keras'] is sys.modules['tf_keras']\n", **ON)
    assert (done.returncode, done.stdout) == (0, "2.21 Dense of tf_keras tf_keras\n"), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("clary: `import keras` is Keras 2 (tf_keras) here, as in the image.")
    assert run(folder, PROGRAM, **ON, RANK="1").stderr == ""


@pytest.mark.parametrize(
    "variables", [{}, {"TF_USE_LEGACY_KERAS": "1"}, {**ON, "CLARY_KERAS_2": ""}, {**ON, "TF_USE_LEGACY_KERAS": "0"}]
)
def test_keras_is_the_installed_package_elsewhere(folder: Path, variables: dict[str, str]) -> None:
    done = run(folder, PROGRAM, **variables)
    assert (done.stdout, done.stderr) == ("3.15 Dense of keras keras\n", "")


def test_a_module_that_keras_2_does_not_have_is_missing(folder: Path) -> None:
    done = run(folder, "import keras.ops\n", **ON)
    assert "ModuleNotFoundError: No module named 'keras.ops'" in done.stderr


def test_without_tf_keras_nothing_changes(folder: Path) -> None:
    (folder / "tf_keras/__init__.py").unlink()
    (folder / "tf_keras/layers/__init__.py").unlink()
    (folder / "tf_keras/layers").rmdir()
    (folder / "tf_keras").rmdir()
    assert run(folder, PROGRAM, **ON).stdout == "3.15 Dense of keras keras\n"


@pytest.mark.needs("tensorflow")
@pytest.mark.long(20)
@pytest.mark.timeout(200)
def test_layers_of_keras_go_into_models_of_tensorflow(tmp_path: Path) -> None:
    program = (
        "import keras\n"
        "from keras.preprocessing.image import ImageDataGenerator\n"
        "import numpy, tensorflow as tf\n"
        "model = tf.keras.Sequential([keras.layers.Dense(2, input_shape=(3,)), tf.keras.layers.Dense(1)])\n"
        "model.compile('sgd', 'mse')\n"
        "print(len(model.fit(numpy.ones((4, 3)), numpy.ones((4, 1)), verbose=0).history['loss']))\n"
    )
    python = str(VENVS / "tensorflow/bin/python")
    assert "ImportError" in run(tmp_path, program, python, TF_USE_LEGACY_KERAS="1").stderr
    done = run(tmp_path, program, python, **ON)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
