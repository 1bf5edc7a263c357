"""`clary profile`: refusals before a profile is requested."""

from pathlib import Path
from types import SimpleNamespace

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


def test_an_unwritable_folder_is_refused_before_a_profile_is_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("clary.cli.profile.connect", lambda: SimpleNamespace(settings=None))
    monkeypatch.setattr("clary.cli.profile.require_local", lambda settings, verb: None)
    assert main(["profile", "x", "--output", str(tmp_path / "file" / "out")]) == 2
    assert "--output " in capsys.readouterr().err
