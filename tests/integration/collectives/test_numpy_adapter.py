"""NumPy arrays over a group, in the training environment: MPI's methods, and arrays that are refused."""

import socket
import subprocess

import pytest
from collective_groups import CORES, LIMIT_S, ROOT, TRAIN_PYTHON, RankProcesses, held_ports

PROGRAM = "numpy_programs.py"


@pytest.fixture
def port():
    with held_ports() as first:
        yield first


def run(scenario, size, *, port, core="reference", hosts=(), **variables):
    environment = {"CLARY_COLLECTIVE_CORE": core, "CLARY_COLLECTIVE_CONNECT_TIMEOUT_S": "30", **variables}
    with RankProcesses(
        PROGRAM, scenario, size, port=port, python=TRAIN_PYTHON, environment=environment, hosts=hosts
    ) as ranks:
        return ranks.results()


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize(("size", "hosts"), [(1, ()), (2, ()), (3, ("a", "b", "a")), (4, ("a", "a", "b", "b"))])
def test_all_methods_return_the_documented_results(core, size, hosts, port):
    assert run("collectives", size, port=port, core=core, hosts=hosts) == [
        {"rank": rank, "size": size} for rank in range(size)
    ]


def test_unsuitable_arrays_are_refused_with_the_remedy(port):
    expected = {
        "list": "TypeError: array is a list: pass a numpy array",
        "strided": "ValueError: array of shape (4, 2) is strided or unaligned memory (strides (32, 16)): pass "
        "np.ascontiguousarray(array)",
        "fortran": "ValueError: array of shape (4, 4) is strided",
        "unsigned": "TypeError: array has elements of type uint32, which collectives do not support: "
        "convert it to one of",
        "big endian": "TypeError: array has elements of type >f4",
        "complex": "TypeError: array has elements of type complex64",
        "read only": "ValueError: buffer is read-only",
        "other type": "TypeError: buffers hold float32 and float64: nothing is converted",
        "other length": "ValueError: out has shape (5,), expected (4,)",
        "list as out": "TypeError: out is a list",
        "list to gather": "TypeError: array is a list",
        "other shape": "ValueError: out has shape (4, 2), expected (2, 4)",
        "axis": "ValueError: axis 0 of an array of shape (3,) is no multiple of 2 ranks: pad it",
        "rows": "ValueError: array of shape (3,) does not have the 2 rows that send_counts asks for",
        "scatter": "ValueError: array has shape (2, 5), expected (2, 4)",
    }
    for found in run("refusals", 2, port=port):
        assert found.keys() == expected.keys()
        for name, words in expected.items():
            assert found[name].startswith(words), (name, found[name])


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "none of RANK, OMPI_COMM_WORLD_RANK, PMI_RANK is set: start this program by a launcher"),
        ({"RANK": "first", "WORLD_SIZE": "2"}, "RANK is 'first'; expected a whole number"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR is not set"),
        ({"OMPI_COMM_WORLD_RANK": "0", "PMI_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}, "none of MASTER_PORT is set"),
        ({"RANK": "2", "WORLD_SIZE": "1"}, "rank 2 of 1"),
    ],
)
def test_a_missing_or_wrong_variable_is_named(variables, words):
    ended = subprocess.run(
        [str(TRAIN_PYTHON), "-c", "from clary.train.collective.adapters.numpy import init; init()"],
        env={"PYTHONPATH": str(ROOT / "src"), **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    last_line = ended.stderr.splitlines()[-1]
    assert last_line.startswith("ValueError: ")
    assert words in last_line


def test_a_port_taken_by_torchruns_store_is_avoided():
    # torchrun's agent listens on MASTER_PORT, and the ranks use the next port
    with held_ports(2) as port, socket.create_server(("127.0.0.1", port)):
        found = run("collectives", 2, port=port, TORCHELASTIC_USE_AGENT_STORE="True")
    assert [result["size"] for result in found] == [2, 2]


def test_importing_collectives_imports_no_framework():
    code = (
        "import sys, clary.train.collective.communicator\n"
        "print([name for name in ('numpy', 'torch', 'asyncio', 'tensorflow') if name in sys.modules])"
    )
    ended = subprocess.run(
        [str(TRAIN_PYTHON), "-c", code],
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert ended.stdout == "[]\n", ended.stderr
