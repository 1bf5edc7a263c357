"""The shim of jax: process numbers, the coordinator, and failed processes that do not wait for their peers."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from clary.agent.launchers.shim_files import RANK_SHIM
from clary.agent.launchers.shims import clary_jax

HOST = {"JAX_COORDINATOR_ADDRESS": "algo-1:7778", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
TORCHRUN = {"MASTER_ADDR": "algo-1", "MASTER_PORT": "29500", "WORLD_SIZE": "4", "RANK": "3"}
MPIRUN = {"JAX_COORDINATOR_ADDRESS": "algo-1:7778", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "5"}


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch):
    """Return a function that sets these variables and unsets all others that the shim reads."""

    def set_only(values: dict[str, str]) -> None:
        names = {name for pair in (*clary_jax._NUMBERS, *clary_jax._LOCAL_NUMBERS) for name in pair}
        for name in names | {"JAX_COORDINATOR_ADDRESS", "MASTER_ADDR", "MASTER_PORT"}:
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return set_only


@pytest.mark.parametrize(
    ("values", "address", "numbers"),
    [
        (HOST, "algo-1:7778", (2, 1)),
        (TORCHRUN, "algo-1:29501", (4, 3)),
        ({**HOST, **TORCHRUN}, "algo-1:7778", (4, 3)),  # torchrun started by a host's program
        ({**HOST, **MPIRUN}, "algo-1:7778", (8, 5)),
        ({**TORCHRUN, "MASTER_ADDR": "fd00::1"}, "[fd00::1]:29501", (4, 3)),
        ({**TORCHRUN, "MASTER_PORT": "65535"}, None, (4, 3)),
        ({**TORCHRUN, "MASTER_PORT": "x", "RANK": "4"}, None, None),
        ({}, None, None),
    ],
)
def test_numbers_are_those_of_the_nearest_launcher(variables, values, address, numbers) -> None:
    variables(values)
    assert clary_jax.coordinator_address() == address
    assert clary_jax.process_numbers() == numbers


@pytest.mark.parametrize(
    ("values", "device"),
    [
        ({"LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "2"}, 2),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, 0),
        ({"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}, None),
        ({}, None),
    ],
)
def test_ranks_that_share_a_host_have_a_gpu_each_and_a_single_rank_has_all(variables, values, device) -> None:
    variables(values)
    assert clary_jax.local_device() == device


def fake_clusters() -> types.ModuleType:
    """Return a module that registers cluster classes as jax does, with one class for Slurm."""
    module = types.ModuleType("clusters")

    class ClusterEnv:
        _cluster_types: list[type] = []

        def __init_subclass__(cls) -> None:
            cls._cluster_types.append(cls)

        @classmethod
        def auto_detect_unset_distributed_params(cls, address: object, *_: object) -> tuple[object, int, int, None]:
            own = cls._cluster_types[0]
            return address or own.get_coordinator_address(), 2, 1, None  # type: ignore[attr-defined]

    class Slurm(ClusterEnv):
        pass

    module.ClusterEnv = ClusterEnv  # type: ignore[attr-defined]
    return module


def test_our_cluster_class_precedes_jaxs_own_in_old_and_new_versions(variables) -> None:
    module = fake_clusters()
    for _ in range(2):
        clary_jax.register(module)
    kinds = module.ClusterEnv._cluster_types
    assert [kind.__name__ for kind in kinds] == ["ClaryCluster", "Slurm"]
    variables(HOST)
    own = kinds[0]
    assert own.is_env_present()
    assert own.get_coordinator_address() == "algo-1:7778"
    assert own.get_coordinator_address(timeout_secs=3, override_coordinator_port=None) == "algo-1:7778"
    assert (own.get_process_count(), own.get_process_id(), own.get_local_process_id()) == (2, 1, None)
    variables({})
    assert not own.is_env_present()


@pytest.mark.parametrize(
    ("address", "given", "bound"),
    [
        ("127.0.0.1:7778", None, "127.0.0.1:7778"),
        ("localhost:7778", None, "localhost:7778"),
        ("[::1]:7778", None, "[::1]:7778"),
        ("algo-1:7778", None, None),
        ("10.77.0.1:7778", None, None),
        ("127.0.0.1:7778", "[::]:9", "[::]:9"),  # the user's own value
    ],
)
def test_a_coordinator_on_loopback_listens_on_loopback_only(variables, monkeypatch, address, given, bound) -> None:
    module = fake_clusters()
    clary_jax.register(module)
    variables({**HOST, "JAX_COORDINATOR_ADDRESS": address})
    monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", given or "")
    assert module.ClusterEnv.auto_detect_unset_distributed_params(None, None, None, None)[0] == address
    assert os.environ.get("JAX_COORDINATOR_BIND_ADDRESS") == bound


def test_a_second_initialize_with_another_address_is_not_bound_to_the_first(variables, monkeypatch) -> None:
    module = fake_clusters()
    clary_jax.register(module)
    variables({**HOST, "JAX_COORDINATOR_ADDRESS": "127.0.0.1:7778"})
    monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", "")
    ask = module.ClusterEnv.auto_detect_unset_distributed_params
    for address, bound in ((None, "127.0.0.1:7778"), ("127.0.0.1:9", "127.0.0.1:9"), ("algo-1:9", None)):
        ask(address, None, None, None)
        assert os.environ.get("JAX_COORDINATOR_BIND_ADDRESS") == bound


def test_an_unknown_cluster_registry_of_jax_is_left_unchanged_and_logged(capsys) -> None:
    clary_jax.register(types.ModuleType("clusters"))
    assert "clary: this version of jax is not known" in capsys.readouterr().err


FAKE_JAX = {
    "__init__.py": "",
    "_src/__init__.py": "",
    "_src/clusters/__init__.py": "class ClusterEnv:\n    _cluster_types = []\n"
    "    def auto_detect_unset_distributed_params(self): pass\n",
    "_src/distributed.py": "class global_state: client = None\n",
    "_src/api.py": "import atexit, time\n@atexit.register\ndef clean_up():\n    print('waited', flush=True)\n",
}
PROGRAM = """
import sys
import jax._src.api, jax._src.clusters, jax._src.distributed
import atexit
atexit.register(print, "own", flush=True)
print(len(jax._src.clusters.ClusterEnv._cluster_types), jax._src.clusters.__loader__.__class__.__name__)
class Client:
    def __del__(self): print("destroyed", flush=True)
jax._src.distributed.global_state.client = Client() if sys.argv[1] != "alone" else None
if sys.argv[2] == "fails": raise ValueError("mine")
"""


@pytest.mark.parametrize(
    ("words", "code", "lines"),
    [
        (["connected", "fails"], 1, ["own"]),
        (["connected", "ends"], 0, ["own", "waited", "destroyed"]),
        (["alone", "fails"], 1, ["own", "waited"]),
    ],
)
def test_a_program_that_fails_while_it_is_connected_does_not_wait_for_its_peers(
    tmp_path: Path, words: list[str], code: int, lines: list[str]
) -> None:
    for name, text in FAKE_JAX.items():
        path = tmp_path / "lib" / "jax" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "train.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, RANK_SHIM, "train.py", *words],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "lib"), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines() == ["1 SourceFileLoader", *lines]
    assert ("ValueError: mine" in done.stderr) == (code == 1)


def test_a_worker_of_mxnet_that_fails_does_not_wait_for_its_peers(tmp_path: Path) -> None:
    (tmp_path / "mxnet.py").write_text("class Store:\n    def __del__(self): print('met all others', flush=True)\n")
    (tmp_path / "train.py").write_text("import mxnet, sys\nstore = mxnet.Store()\nsys.exit(int(sys.argv[1]))\n")

    def run(role: str, code: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, RANK_SHIM, "train.py", code],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "DMLC_ROLE": role, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return done.returncode, done.stdout

    assert run("worker", "3") == (3, "")
    assert run("worker", "0") == (0, "met all others\n")
    assert run("", "3") == (3, "met all others\n")
