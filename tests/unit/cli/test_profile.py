"""`clary profile`: refusals before a profile is requested."""

from pathlib import Path

import pytest

from clary.cli.main import main


def test_files_of_a_service_elsewhere_are_not_copied(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("CLARY_ADMIN_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x" * 20)
    monkeypatch.setenv("CLARY_URL", "https://gpu-room:4571")
    assert main(["profile", "demo", "--last", "--output", str(tmp_path / "out")]) == 2
    assert "clary profile --output acts on this machine" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
