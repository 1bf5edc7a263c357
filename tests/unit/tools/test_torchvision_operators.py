"""The package in the tests' environments that lets torchvision's wheel for GPUs be imported with a torch for CPUs."""

import subprocess
import sys
from importlib.metadata import distributions, entry_points

from tools import torchvision_operators


def test_the_installed_package_has_an_entry_point_that_torch_calls(tmp_path, monkeypatch):
    for _ in range(2):  # a second installation, as by a second `make`
        torchvision_operators.install(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    (point,) = entry_points(group="torch.backends")
    assert point.value == "torchvision_operators:declare"
    (told,) = distributions(name="torchvision-operators", path=[str(tmp_path)])
    assert all((tmp_path / str(file)).exists() for file in told.files)


def test_the_installed_module_does_not_import_torch(tmp_path):
    torchvision_operators.install(tmp_path)
    words = "import sys, torchvision_operators; print(torchvision_operators.NAME, 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", words], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "torchvision_operators False\n"
