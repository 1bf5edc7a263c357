"""`tools/test_native.sh sample` chooses one sanitizer by the last digit of the seed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "tools/test_native.sh"


@pytest.mark.needs("gtest")
@pytest.mark.parametrize(
    ("seed", "sanitizer"),
    [("08", "address,undefined"), ("09", "thread"), ("7", "thread"), ("010", "address,undefined"), ("0", "address")],
)
def test_a_seed_chooses_a_sanitizer_by_its_last_digit(seed: str, sanitizer: str, tmp_path: Path) -> None:
    for folder in ("tools", "bin"):
        (tmp_path / folder).mkdir()
    shutil.copy(SCRIPT, tmp_path / "tools")
    for name in ("cmake", "ctest", "c++"):  # fakes: no code is compiled
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / name).chmod(0o755)
    done = subprocess.run(
        ["sh", str(tmp_path / "tools" / SCRIPT.name), "bin", "sample"],
        env={"PATH": os.environ["PATH"], "CLARY_TEST_SEED": seed},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert f"this run has one sanitizer, {sanitizer}" in done.stdout
