"""smddprun and smddpmprun: the variables of a rank; the rest of the command line runs unchanged."""

import subprocess

import pytest

from clary.agent.launchers.shim_files import SHIMS_BIN_FOLDER

SHOWN = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SMDATAPARALLEL_LOCAL_RANK",
    "SMDATAPARALLEL_USE_SINGLENODE",
    "SAGEMAKER_INSTANCE_TYPE",
)
OMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


def run(program: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{SHIMS_BIN_FOLDER}:/usr/bin:/bin", **variables}
    return subprocess.run([program, *words], env=environment, capture_output=True, text=True, timeout=20)


def variables_of(program: str, *options: str, **variables: str) -> dict[str, str]:
    done = run(program, *options, "env", **variables)
    assert done.returncode == 0, done.stderr
    pairs = (line.split("=", 1) for line in done.stdout.splitlines())
    return {name: value for name, value in pairs if name in SHOWN}


def test_a_rank_below_mpirun_gets_the_variables_that_torch_reads() -> None:
    several = {**OMPI, "SMDATAPARALLEL_USE_HOMOGENEOUS": "1", "SMDATAPARALLEL_SERVER_ADDR": "algo-1", "RANK": "0"}
    assert variables_of("smddprun", **several) == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "SMDATAPARALLEL_LOCAL_RANK": "1",
        "MASTER_ADDR": "algo-1",
        "MASTER_PORT": "7777",
    }
    alone = variables_of("smddprun", **{**OMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"})
    assert (alone["MASTER_ADDR"], alone["SMDATAPARALLEL_USE_SINGLENODE"]) == ("127.0.0.1", "1")


def test_a_rank_that_clarys_launcher_started_keeps_its_variables() -> None:
    own = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    own |= {"MASTER_ADDR": "algo-7", "MASTER_PORT": "40001"}
    assert variables_of("smddprun", **own) == {**own, "SMDATAPARALLEL_LOCAL_RANK": "0"}


def test_a_program_without_mpirun_has_world_size_1() -> None:
    seen = variables_of("smddprun")
    assert (seen["RANK"], seen["WORLD_SIZE"], seen["LOCAL_RANK"]) == ("0", "1", "0")


def test_the_command_runs_word_for_word_and_its_exit_code_is_the_launchers() -> None:
    done = run("smddprun", "/bin/sh", "-c", 'printf "<%s>" "$@"; exit 7', "x", "a b", "", "it's $HOME")
    assert (done.returncode, done.stdout) == (7, "<a b><><it's $HOME>")
    done = run("smddpmprun", "-i", "ml.p4d.24xlarge", "--allow-bypass", "/bin/sh", "-c", 'echo "$1"', "x", "-i")
    assert (done.returncode, done.stdout) == (0, "-i\n")


def test_smddpmprun_is_smddprun_with_an_instance_type() -> None:
    seen = variables_of("smddpmprun", "-i", "ml.p4d.24xlarge", "--allow-bypass", **OMPI)
    assert (seen["RANK"], seen["SAGEMAKER_INSTANCE_TYPE"]) == ("3", "ml.p4d.24xlarge")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("smddprun",), "usage: smddprun COMMAND"),
        (("smddpmprun", "--allow-bypass"), "usage: smddpmprun"),
        (("smddpmprun", "-i"), "-i needs an instance type"),
        (("smddpmprun", "--other", "true"), "--other is not known"),
    ],
)
def test_invalid_command_lines_are_refused_with_a_message(words: tuple[str, ...], said: str) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert said in done.stderr
