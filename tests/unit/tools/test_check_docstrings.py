"""Public docstrings without their parameters, shapes or errors are found; private functions are ignored."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[3] / "tools/check_docstrings.py"


def check(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    file = folder / "one.py"
    file.write_text(text)
    return subprocess.run([sys.executable, str(TOOL), str(file)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('def act(left, right, upper):\n    """Join."""\n', "args"),
        ('def act(x: torch.Tensor):\n    """Join."""\n', "shapes"),
        ('def act(x):\n    """Join."""\n    raise ValueError(x)\n', "raises"),
        ('class One:\n    def act(self, left, right, upper):\n        """Join."""\n', "args"),
    ],
)
def test_a_docstring_with_a_missing_section_is_reported(tmp_path: Path, text: str, kind: str) -> None:
    done = check(tmp_path, text)
    assert done.returncode == 1
    assert done.stdout.endswith(f": act: {kind}\n")


@pytest.mark.parametrize(
    "text",
    [
        'def act(left, right, upper):\n    """Join.\n\n    Args:\n        left: first.\n    """\n',
        'def act(left, right, upper):\n    """Join left, right and upper."""\n',
        'def act(x_BS: torch.Tensor):\n    """Join."""\n',
        'def act(x: torch.Tensor):\n    """Join x, [B, S]."""\n',
        'def act(x):\n    """Join. Raises: ValueError."""\n    raise ValueError(x)\n',
        'def _act(left, right, upper):\n    """Join."""\n',
        'def act(x):\n    """Join."""\n    def inner():\n        raise ValueError\n    return inner\n',
    ],
)
def test_a_complete_docstring_passes(tmp_path: Path, text: str) -> None:
    assert check(tmp_path, text).returncode == 0
