"""nvidia-smi of a host with a part of the machine's GPUs: `-L` lists the host's own, anything else is passed on."""

import os
import subprocess
from pathlib import Path

import pytest

from clary.agent.launchers.shim_files import GPU_SHIMS_FOLDER, SHIMS_BIN_FOLDER, shims_path

NUM_GPUS = 8


def name_of(index: int) -> str:
    return f"GPU {index}: NVIDIA A100-SXM4-40GB (UUID: GPU-{index:08x}-0000-0000-0000-000000000000)"


class FakeNvidiaSmi:
    """A program that lists eight GPUs, the first with a part, and prints any other arguments."""

    def __init__(self, folder: Path, *, first: int = 0, code: int = 0) -> None:
        lines = [name_of(index) for index in range(first, first + NUM_GPUS)]
        lines.insert(1, "  MIG 1g.5gb Device  0: (UUID: MIG-0)")
        self.listing = "\n".join(lines) + "\n"
        folder.mkdir()
        (folder / "listing").write_text(self.listing)
        self.path = folder / "nvidia-smi"
        self.path.write_text(
            f'#!/bin/sh\nif [ "$*" = -L ] || [ "$*" = --list-gpus ]; then cat {folder}/listing; exit {code}; fi\n'
            'printf "<%s>" "$@"\nexit 5\n'
        )
        self.path.chmod(0o755)


@pytest.fixture
def run(tmp_path: Path):
    def ask(*arguments: str, gpus: str | None = "2,0", folder: Path = tmp_path / "driver") -> tuple[str, int]:
        variables = {"PATH": f"{GPU_SHIMS_FOLDER}:{folder}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": "7"}
        if gpus is not None:
            variables["CLARY_HOST_GPUS"] = gpus
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, env=variables, check=False)
        return done.stdout, done.returncode

    return ask


@pytest.mark.parametrize("option", ["-L", "--list-gpus"])
def test_the_hosts_own_gpus_are_listed_with_their_parts(tmp_path: Path, run, option: str) -> None:
    FakeNvidiaSmi(tmp_path / "driver")
    part = "  MIG 1g.5gb Device  0: (UUID: MIG-0)"
    assert run(option) == (f"{name_of(0)}\n{part}\n{name_of(2)}\n", 0)
    assert run(option, gpus="1,7") == (f"{name_of(1)}\n{name_of(7)}\n", 0)
    assert run(option, gpus="") == ("", 0)


def test_sdk_v3_counts_the_hosts_own_gpus(tmp_path: Path, run) -> None:
    FakeNvidiaSmi(tmp_path / "driver")
    output, _ = run("--list-gpus", gpus="4,5,6,7")
    assert sum(line.startswith("GPU ") for line in output.splitlines()) == 4  # as in its environment.py


@pytest.mark.parametrize("arguments", [(), ("-q", "a b"), ("-L", "-i", "3"), ("--query-gpu=index", "")])
def test_other_arguments_are_passed_on_unchanged(tmp_path: Path, run, arguments: tuple[str, ...]) -> None:
    FakeNvidiaSmi(tmp_path / "driver")
    assert run(*arguments) == ("".join(f"<{word}>" for word in arguments) or "<>", 5)


def test_a_listing_without_the_hosts_indices_is_passed_on(tmp_path: Path, run) -> None:
    """A cluster that shows only an allocation's GPUs numbers them from 0."""
    tool = FakeNvidiaSmi(tmp_path / "driver")
    assert run("-L", gpus="6,7,8,9") == (tool.listing, 0)
    assert run("-L", gpus=None) == (tool.listing, 0)


def test_the_exit_code_of_a_driver_that_fails_stays(tmp_path: Path, run) -> None:
    FakeNvidiaSmi(tmp_path / "driver", code=9)
    assert run("-L", gpus="0")[1] == 9


def test_without_the_real_program_there_is_none(tmp_path: Path) -> None:
    done = subprocess.run(
        ["nvidia-smi", "-L"], env={"PATH": f"{GPU_SHIMS_FOLDER}:/usr/bin:/bin"}, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (127, b"")


def test_only_hosts_with_a_part_of_the_machines_gpus_get_it(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia11", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    part = f"{GPU_SHIMS_FOLDER}:{SHIMS_BIN_FOLDER}"
    assert shims_path((0, 11), devices=tmp_path) == part
    assert shims_path((), devices=tmp_path) == part
    assert shims_path((0, 1, 11), devices=tmp_path) == SHIMS_BIN_FOLDER
    assert shims_path((), devices=tmp_path / "absent") == SHIMS_BIN_FOLDER
