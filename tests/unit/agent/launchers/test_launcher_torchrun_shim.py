"""The torchrun shim: command lines that it rewrites, and command lines that it leaves to the real torchrun."""

import argparse
import importlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from clary.agent.launchers.shim_files import RANK_SHIM, SHIMS_BIN_FOLDER, SHIMS_FOLDER


@pytest.fixture
def shim(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(SHIMS_FOLDER)
    yield importlib.import_module("clary_torchrun")
    sys.modules.pop("clary_torchrun", None)


class FakeTorchRun:
    """The part of torch.distributed.run that the shim uses, with the options that launchers pass."""

    @staticmethod
    def parse_args(arguments: list[str]) -> argparse.Namespace:
        parser = argparse.ArgumentParser()
        for option in ("--nnodes", "--node-rank", "--node_rank", "--master_addr", "--master_port"):
            parser.add_argument(option)
        parser.add_argument("--nproc-per-node", "--nproc_per_node")
        parser.add_argument("--no-python", "--no_python", action="store_true")
        parser.add_argument("--run-path", "--run_path", action="store_true")
        parser.add_argument("-m", "--module", action="store_true")
        parser.add_argument("training_script")
        parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
        return parser.parse_args(arguments)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--nnodes=2", "--nproc_per_node=8", "--master_addr=algo-1", "train.py", "--lr", "0.1"],
            ["--nnodes=2", "--nproc_per_node=8", "--master_addr=algo-1", RANK_SHIM, "train.py", "--lr", "0.1"],
        ),
        (["--nnodes", "1", "train.py"], ["--nnodes", "1", RANK_SHIM, "train.py"]),
        (["train.py", "-m", "--module", "--nnodes"], [RANK_SHIM, "train.py", "-m", "--module", "--nnodes"]),
        (["-m", "pkg.train", "-m", "x"], [RANK_SHIM, "-m", "pkg.train", "-m", "x"]),
        (["--module", "--nnodes", "1", "pkg"], ["--nnodes", "1", RANK_SHIM, "-m", "pkg"]),
        (["--no-python", "bash", "run.sh"], ["--no-python", "bash", "run.sh"]),
        (["--run_path", "train.py"], ["--run_path", "train.py"]),
    ],
)
def test_the_program_runs_through_the_rank_shim(shim: ModuleType, arguments: list[str], expected: list[str]) -> None:
    assert shim.rewrite(arguments, FakeTorchRun) == expected


def test_abbreviated_module_option_is_left_to_the_real_torchrun(shim: ModuleType) -> None:
    with pytest.raises(ValueError, match="form that is not known"):
        shim.rewrite(["--modul", "pkg"], FakeTorchRun)


def test_a_signalled_torchrun_waits_briefly_for_the_stop_notice(
    shim: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    notice, times = tmp_path / "notice.json", []
    monkeypatch.setenv(shim.NOTICE_VARIABLE, str(notice))

    def sleep(seconds: float) -> None:
        times.append(seconds)
        if len(times) == 3:
            notice.write_text('{"deadline_monotonic_s": 5.0}')

    monkeypatch.setattr(shim.time, "sleep", sleep)
    shim.wait_for_notice()
    assert len(times) == 3
    shim.wait_for_notice()
    assert len(times) == 3, "it is there"


def test_no_stop_notice_is_waited_for_where_none_can_come(shim: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(shim.NOTICE_VARIABLE, raising=False)
    monkeypatch.setattr(shim.time, "sleep", lambda _: pytest.fail("waits"))
    shim.wait_for_notice()


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip())
    path.chmod(0o755)


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Call torchrun by name, as launchers do, in an environment of folder/bin and folder/lib."""
    program(folder / "bin" / "python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    path = f"{SHIMS_BIN_FOLDER}:{folder / 'bin'}:/usr/bin:/bin"
    environment = {"PATH": path, "PYTHONPATH": str(folder / "lib")}
    return subprocess.run(["torchrun", *arguments], env=environment, capture_output=True, text=True, cwd=folder)


def test_ranks_of_torchrun_run_through_the_rank_shim(tmp_path: Path) -> None:
    (tmp_path / "lib" / "torch" / "distributed").mkdir(parents=True)
    (tmp_path / "lib" / "torch" / "__init__.py").write_text("")
    (tmp_path / "lib" / "torch" / "distributed" / "__init__.py").write_text("")
    (tmp_path / "lib" / "torch" / "distributed" / "run.py").write_text(
        textwrap.dedent("""
        import argparse
        def parse_args(args):
            parser = argparse.ArgumentParser()
            parser.add_argument("--nnodes")
            parser.add_argument("--no-python", action="store_true")
            parser.add_argument("-m", "--module", action="store_true")
            parser.add_argument("training_script")
            parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
            return parser.parse_args(args)
        def main(args=None):
            print(args)
        """)
    )
    program(tmp_path / "bin" / "torchrun", '#!/bin/sh\necho "real $@"\n')
    done = call(tmp_path, "--nnodes", "2", "train.py", "--lr", "1")
    assert done.stdout == f"{['--nnodes', '2', RANK_SHIM, 'train.py', '--lr', '1']}\n", done.stderr
    assert call(tmp_path, "--help").stdout == "real --help\n"
    assert call(tmp_path, "--unknown").stdout == "real --unknown\n"
    assert call(tmp_path, "--modul", "x").stdout == "real --modul x\n"


def test_without_torch_in_the_interpreter_the_real_torchrun_runs_unchanged(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "torchrun", '#!/bin/sh\necho "real $@"\nexit 7\n')
    done = call(tmp_path, "--nnodes", "2", "train.py", "a b")
    assert (done.returncode, done.stdout) == (7, "real --nnodes 2 train.py a b\n")


def test_without_any_torch_torchrun_is_not_found(tmp_path: Path) -> None:
    done = call(tmp_path, "train.py")
    assert done.returncode == 127
    assert "torch is not installed" in done.stderr


def test_programs_of_the_shims_folder_can_be_run() -> None:
    for name in ("torchrun", "clary-mpi-rsh"):
        assert os.access(Path(SHIMS_BIN_FOLDER, name), os.X_OK)
