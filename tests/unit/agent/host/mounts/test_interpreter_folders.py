"""Folders of an environment, and commands that lie outside the folders that hosts show."""

from pathlib import Path

import pytest

from clary.agent.host.mounts.interpreter_folders import interpreter_binds, needs_overlay, why_not_visible
from clary.agent.host.sandbox import Bind, ProcessSpec, Sandbox
from clary.contract.launch_plan import Isolation, Resources


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a folder that hosts do not show; pytest's own folder lies below a path that every host replaces."""
    monkeypatch.setattr("clary.agent.host.mounts.interpreter_folders.PRIVATE_TOPS", ("/dev",))
    return tmp_path.resolve()


def sandbox(*visible: Path, binds: tuple[Bind, ...] = ()) -> Sandbox:
    return Sandbox(
        isolation=Isolation.NAMESPACES,
        hostname="algo-1",
        host_folder="/h",
        ml_folder="/h/ml",
        hosts_file={},
        resources=Resources(num_cpus=1, memory_bytes=None),
        cgroup_name="c",
        visible_folders=tuple(map(str, visible)),
        binds=binds,
    )


def started(*argv: str) -> list[ProcessSpec]:
    return [ProcessSpec(argv=argv, environment={}, working_folder="/", rank=None, local_rank=0)]


def test_a_script_where_hosts_show_nothing_is_named_with_the_setting(elsewhere: Path) -> None:
    script = elsewhere / "train.py"
    script.write_text("")
    reason = why_not_visible(started("/usr/bin/python3", "-u", str(script)), sandbox())
    assert str(script) in reason
    assert "visible_folders" in reason
    assert str(script) in why_not_visible(started(str(script)), sandbox())
    bind = Bind(source=str(elsewhere), target=str(elsewhere))
    assert why_not_visible(started("python3", str(script)), sandbox(elsewhere)) == ""
    assert why_not_visible(started("python3", str(script)), sandbox(binds=(bind,))) == ""


@pytest.mark.parametrize("argv", [("/usr/bin/env",), ("mkdir", "-p", "/root"), ("bash", "/opt/ml/x"), ("/no/such",)])
def test_commands_in_shown_folders_and_missing_commands_are_accepted(argv: tuple[str, ...]) -> None:
    assert why_not_visible(started(*argv), sandbox()) == ""


def test_an_environment_brings_its_base_and_the_folders_of_its_pth_files(elsewhere: Path) -> None:
    base, packages, environment = (elsewhere / name for name in ("base", "packages", "env"))
    site = environment / "lib/python3.11/site-packages"
    for folder in (base / "bin", packages, site):
        folder.mkdir(parents=True)
    (environment / "pyvenv.cfg").write_text(f"home = {base}/bin\nversion = 3.11.7\n")
    (site / "more.pth").write_text(f"import os\n{packages}\n/no/such/folder\nrelative\n{site}\n")
    binds = interpreter_binds(environment, str(environment / "bin/python"))
    assert [(bind.source, bind.target, bind.read_only, bind.keeps_owners) for bind in binds] == [
        (str(base), str(base), True, True),
        (str(packages), str(packages), True, True),
    ]
    assert needs_overlay(environment)
    assert not needs_overlay(Path("/usr"))
    assert interpreter_binds(Path("/usr"), "/usr/bin/python3") == ()
