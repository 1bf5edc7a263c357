"""The batch script, and the program of its steps, run by the shell and interpreter of this machine."""

import ast
import inspect
import json
import subprocess
import sys

import pytest

from clary.base.errors import EngineError
from clary.control.engines.cluster.scheduler import Boot
from clary.control.engines.slurm import step_start
from clary.control.engines.slurm.batch_script import GPU_VARIABLES, batch_script

TAG = "pool_0123456789ab"
# Stands in for the boot: it prints its arguments and files.
STAND_IN_FOR_BOOT = """
import json, os, sys
from pathlib import Path
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
said = {"options": options, "pid": os.getpid(), "ca": Path(options["--ca"]).read_text(), "file": __file__}
print(json.dumps(said))
"""
AWKWARD = 'it\'s "a" $(touch pwned) `id` \\ EOF\n'


def boot(script=STAND_IN_FOR_BOOT, ca_pem="-----BEGIN-----\n" + AWKWARD):
    return Boot(script=script, service_url="https://head:4571", ca_pem=ca_pem)


def script_of(tmp_path, components=((0, 1),), **changes):
    options = {"boot": boot(), "python": sys.executable, "scratch": str(tmp_path / "scratch"), "output": ""}
    return batch_script(TAG, components, **options | changes)


def run_step(tmp_path, script, index="1", **variables):
    """Run the command that srun would run, with the script's own variables."""
    lines = script.replace("srun $group", ": #").splitlines()
    cut = next(number for number, line in enumerate(lines) if line.startswith("declare -A"))
    run = "\n".join([*lines[:cut], f'exec "$python" -I -c "$program" "$payload" {index}'])
    return subprocess.run(
        ["bash", "-c", run],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": "/", "SLURM_JOB_ID": "6"} | variables,
        cwd=tmp_path,
        timeout=30,
        check=False,
    )


def words_of(folder):
    (path,) = folder.glob("*.log")
    return path.name, path.read_text()


def test_a_step_becomes_the_boot_with_files_that_only_its_user_reads(tmp_path):
    done = run_step(tmp_path, script_of(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (own,) = (tmp_path / "scratch").iterdir()
    assert own.stat().st_mode & 0o777 == 0o700
    name, text = words_of(own / "logs")
    said = json.loads(text)
    assert name == f"{TAG}-1.6.log"
    assert said["ca"] == boot().ca_pem
    assert said["options"] == {
        "--service": "https://head:4571",
        "--ca": said["options"]["--ca"],
        "--tag": TAG,
        "--index": "1",
        "--proof": "munge",
        "--scratch": str(tmp_path / "scratch"),
    }
    assert not (tmp_path / "pwned").exists()
    assert {path.stat().st_mode & 0o777 for path in own.iterdir() if path.is_file()} == {0o600}


def test_output_goes_to_the_services_folder_if_the_node_sees_it(tmp_path):
    output = tmp_path / AWKWARD.strip()
    output.mkdir(mode=0o700, parents=True)
    done = run_step(tmp_path, script_of(tmp_path, output=str(output)))
    assert done.returncode == 0
    name, _ = words_of(output)
    assert name == f"{TAG}-1.6.log"
    assert not (tmp_path / "pwned").exists()


def test_a_folder_that_others_can_write_is_refused(tmp_path):
    script = script_of(tmp_path)
    run_step(tmp_path, script)
    (own,) = (tmp_path / "scratch").iterdir()
    own.chmod(0o777)
    done = run_step(tmp_path, script)
    assert done.returncode == 1
    assert "that is closed to others; remove it" in done.stderr


def test_a_link_in_place_of_the_folder_is_refused(tmp_path):
    script = script_of(tmp_path)
    run_step(tmp_path, script)
    (own,) = (tmp_path / "scratch").iterdir()
    own.rename(tmp_path / "elsewhere")
    own.symlink_to(tmp_path / "elsewhere")
    done = run_step(tmp_path, script)
    assert done.returncode == 1
    assert "that is closed to others; remove it" in done.stderr


def test_a_file_of_the_right_name_with_other_content_is_replaced(tmp_path):
    script = script_of(tmp_path)
    run_step(tmp_path, script)
    (path,) = (tmp_path / "scratch").glob("clary-*/*-boot.py")
    path.write_text("raise SystemExit(7)")
    assert run_step(tmp_path, script).returncode == 0
    assert path.read_text() == STAND_IN_FOR_BOOT


def test_without_a_folder_in_settings_a_folder_of_the_node_is_used(tmp_path):
    script = script_of(tmp_path, scratch="")
    done = run_step(tmp_path, script, SLURM_TMPDIR=str(tmp_path / "job"), TMPDIR=str(tmp_path / "node"))
    assert done.returncode == 0
    assert (tmp_path / "job").is_dir()
    assert not (tmp_path / "node").exists()


def test_the_script_has_valid_shell_syntax(tmp_path):
    for components in (((0, 1),), ((0,), (1, 2))):
        script = script_of(tmp_path, components)
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, timeout=30, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_components_are_addressed_by_their_own_numbers(tmp_path):
    one = script_of(tmp_path).splitlines()
    assert 'start_hosts "$SLURM_JOB_NODELIST" "" 0 1' in one
    two = script_of(tmp_path, ((1,), (0, 2))).splitlines()
    assert 'start_hosts "$SLURM_JOB_NODELIST_HET_GROUP_0" --het-group=0 1' in two
    assert 'start_hosts "$SLURM_JOB_NODELIST_HET_GROUP_1" --het-group=1 0 2' in two
    assert f"unset {' '.join(GPU_VARIABLES)}" in two


def test_a_boot_that_does_not_fit_an_argument_is_refused(tmp_path):
    long = "".join(f"{number * 2654435761 % 2**32:x}" for number in range(40_000))
    with pytest.raises(EngineError, match="one argument of a step holds at most 100000"):
        script_of(tmp_path, boot=boot(script=long))


def test_the_program_of_steps_compiles_with_python_3_10():
    tree = ast.parse(inspect.getsource(step_start), feature_version=(3, 10))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names <= set(sys.stdlib_module_names)
