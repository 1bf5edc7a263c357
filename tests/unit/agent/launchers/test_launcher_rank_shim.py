"""`clary_rank`: programs behave as under python itself, and an abort of torch at exit does not hide success."""

import ast
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from clary.agent.launchers.shim_files import RANK_SHIM, SHIMS_FOLDER

# Aborts while the interpreter is torn down, as torch's gloo sometimes does.
FAKE_TORCH = """
import ctypes
_abort = ctypes.CDLL(None).abort
ctypes.pythonapi.Py_AtExit(ctypes.cast(_abort, ctypes.c_void_p))
"""
FAKE_DISTRIBUTED = """
import os, time
is_available = lambda: True
is_initialized = lambda: True
def destroy_process_group():
    print("destroyed", flush=True)
    time.sleep(float(os.environ.get("FAKE_DESTROY_S", "0")))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "lib" / "torch").mkdir(parents=True)
    (tmp_path / "lib" / "torch" / "__init__.py").write_text(FAKE_TORCH)
    (tmp_path / "lib" / "torch" / "distributed.py").write_text(FAKE_DISTRIBUTED)
    (tmp_path / "work").mkdir()
    return tmp_path


def run(folder: Path, text: str, *, shim: bool = True, name: str = "train.py", **options: object):
    """Run `text` as a script in folder/work; `sys.path` has folder/lib for the fake torch."""
    (folder / "work" / name).write_text(textwrap.dedent(text))
    command = [sys.executable, *([RANK_SHIM] if shim else []), name, "--epochs", "3"]
    environment = {"PYTHONPATH": str(folder / "lib"), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    arguments = {"capture_output": True, "text": True, "timeout": 30, "cwd": folder / "work", "env": environment}
    return subprocess.run(command, **{**arguments, **options})


def test_an_abort_during_teardown_is_no_failure_of_the_training(folder: Path) -> None:
    text = "import torch\nprint('trained')\n"
    assert run(folder, text, shim=False).returncode == -signal.SIGABRT  # the abort occurs without the shim
    done = run(folder, text)
    assert (done.returncode, done.stdout) == (0, "trained\n")


def test_abort_of_the_program_itself_is_not_hidden(folder: Path) -> None:
    assert run(folder, "import os, torch\nos.abort()\n").returncode == -signal.SIGABRT
    at_exit = "import atexit, os, torch\natexit.register(os.abort)\n"
    assert run(folder, at_exit).returncode == -signal.SIGABRT


PROBE = """
import sys, os, json
names = ("__name__", "__file__", "__package__", "__doc__", "__cached__")
print([str(globals().get(name)) for name in names], getattr(__spec__, "name", None), type(__loader__).__name__)
print(sys.argv, sys.path[0], os.getcwd(), sys.modules["__main__"].__dict__ is globals(), type(__builtins__).__name__)
print(sorted(name for name in globals() if name.startswith("__")))
"""


def test_script_sees_the_world_that_python_shows_it(folder: Path) -> None:
    assert run(folder, PROBE).stdout == run(folder, PROBE, shim=False).stdout


def test_a_script_starts_with_hardly_more_modules_than_under_python(folder: Path) -> None:
    text = "import sys\nprint(*sorted(sys.modules))\n"
    names = [set(run(folder, text, shim=shim).stdout.split()) for shim in (True, False)]
    own = {"clary_imports", "clary_jax", "clary_keras", "clary_numpy"}
    light = {"__future__", "atexit", "importlib", "importlib.machinery", "types", "warnings"}
    light |= {"importlib._bootstrap", "importlib._bootstrap_external"}
    assert names[0] - names[1] <= own | light, "each rank of each job pays for every other import"


def test_a_failure_is_told_although_the_program_has_modules_named_as_those_of_the_standard_library(
    folder: Path,
) -> None:
    for name in ("json", "traceback", "runpy", "signal", "threading"):
        (folder / "work" / f"{name}.py").write_text("open('was-run', 'w').close()")
    environment = {"PATH": "/usr/bin:/bin", "CLARY_ERRORS_FOLDER": str(folder / "errors")}
    text = 'a "quoted" \\\\ path, \\n, \\x00, \u00e9 \U0001f40c \ud800'
    done = run(folder, f"raise ValueError({text!a})", env=environment)
    assert done.returncode == 1
    assert "ValueError: a " in done.stderr
    (record,) = (folder / "errors").iterdir()
    told = json.loads(record.read_text())
    assert (told["rank"], told["text"]) == (None, f"ValueError: {text}")
    assert abs(told["at"] - time.time()) < 60
    text = "import atexit\natexit.register(lambda: 1 / 0)\nraise KeyboardInterrupt"
    done = run(folder, text, env=environment)
    assert done.returncode == -signal.SIGINT
    assert "ZeroDivisionError" in done.stderr
    assert not (folder / "work" / "was-run").exists(), "a file of the program was run that it never imports"


def test_module_sees_the_world_that_python_shows_it(folder: Path) -> None:
    package = folder / "work" / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "main.py").write_text(PROBE)
    options = {"capture_output": True, "text": True, "cwd": folder / "work", "check": True}
    plain = subprocess.run([sys.executable, "-m", "pkg.main", "-x"], **options)
    ours = subprocess.run([sys.executable, RANK_SHIM, "-m", "pkg.main", "-x"], **options)
    assert ours.stdout == plain.stdout
    missing = subprocess.run([sys.executable, RANK_SHIM, "-m", "pkg.none"], capture_output=True, text=True, cwd=package)
    assert missing.returncode == 1
    assert "No module named" in missing.stderr


ENDS = {
    "nothing": "",
    "exit-none": "import sys; sys.exit()",
    "exit-0": "import sys; sys.exit(0)",
    "exit-3": "import sys; sys.exit(3)",
    "exit-true": "import sys; sys.exit(True)",
    "exit-negative": "import sys; sys.exit(-1)",
    "exit-256": "import sys; sys.exit(256)",
    "exit-huge": "import sys; sys.exit(2**70)",
    "exit-text": "import sys; print('out'); sys.exit('it went wrong')",
    "exit-tuple": "import sys; sys.exit((1, 2))",
    "error": "def f():\n    raise ValueError('boom')\nf()\n",
    "chained": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('x') from error\n",
    "context": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise KeyError('x')\n",
    "group": "raise ExceptionGroup('many', [ValueError(1), KeyError(2)])",
    "syntax": "x = = 1\n",
    "interrupt": "raise KeyboardInterrupt",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "sigint": "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(5)",
    "os-exit": "import os; os._exit(5)",
    "hook": "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__, a[2].tb_lineno)\nraise KeyError(1)\n",
    "hook-exits": "import sys\nsys.excepthook = lambda *a: sys.exit(9)\nraise KeyError(1)\n",
    "thread-error": "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='T')\nt.start()\nt.join()\n",
    "generator-exit": "raise GeneratorExit",
}


@pytest.mark.parametrize("text", ENDS.values(), ids=ENDS.keys())
def test_every_kind_of_end_has_pythons_exit_code_and_message(folder: Path, text: str) -> None:
    plain = run(folder, text, shim=False)
    ours = run(folder, text)
    assert (ours.returncode, ours.stdout, ours.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    with_torch = run(folder, f"import torch;{text}")  # tracebacks contain the line of the import
    assert (with_torch.returncode, with_torch.stdout) == (plain.returncode, plain.stdout)
    assert "clary_rank" not in with_torch.stderr


def test_missing_script_fails_as_with_python(folder: Path) -> None:
    done = subprocess.run([sys.executable, RANK_SHIM, "no.py"], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 2
    assert "can't open file" in done.stderr


@pytest.mark.parametrize("with_torch", [False, True])
def test_threads_then_exit_handlers_then_buffers(folder: Path, with_torch: bool) -> None:
    text = """
    import atexit, concurrent.futures, threading, time, sys
    %s
    atexit.register(lambda: print("atexit", end=" "))
    def late():
        time.sleep(0.2)
        print("thread", end=" ")
    threading.Thread(target=late).start()
    concurrent.futures.ThreadPoolExecutor().submit(late)
    print("main", end=" ")
    """ % ("import torch" if with_torch else "")
    done = run(folder, text)
    assert (done.returncode, done.stdout) == (0, "main thread thread atexit ")


def test_process_group_is_destroyed_after_success_only(folder: Path) -> None:
    assert run(folder, "import torch, torch.distributed\n").stdout == "destroyed\n"
    assert run(folder, "import torch, torch.distributed\nraise SystemExit(1)\n").stdout == ""


def test_a_process_group_whose_destruction_hangs_is_abandoned(folder: Path) -> None:
    (folder / "work" / "train.py").write_text("import torch, torch.distributed\n")
    driver = "import clary_rank; clary_rank.DESTROY_TIMEOUT_S = 0.2; clary_rank.main()"
    environment = {"PYTHONPATH": f"{folder / 'lib'}:{SHIMS_FOLDER}", "FAKE_DESTROY_S": "60"}
    command = [sys.executable, "-c", driver, "train.py"]
    done = subprocess.run(command, cwd=folder / "work", env=environment, timeout=20, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "destroyed\n")


def test_lost_output_is_a_failure(folder: Path) -> None:
    with Path("/dev/full").open("w") as full:
        options = {"capture_output": False, "stdout": full, "stderr": subprocess.DEVNULL}
        for text in ("print('x')\n", "import torch\nprint('x')\n"):
            assert run(folder, text, **options).returncode == 120


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_workers_of_multiprocessing_and_pickled_functions_of_main(folder: Path, method: str) -> None:
    text = f"""
    import multiprocessing, pickle, sys, torch

    class Point:
        def __init__(self, x): self.x = x

    def double(point): return Point(2 * point.x)

    if __name__ == "__main__":
        context = multiprocessing.get_context("{method}")
        with context.Pool(2) as pool:
            print([point.x for point in pool.map(double, [Point(1), Point(2)])])
        assert pickle.loads(pickle.dumps(double)) is double
        print(double.__module__, sys.argv)
    """
    done = run(folder, text)
    # Spawned children end in the teardown that the fake torch breaks; their results have arrived before.
    assert done.stdout == "[2, 4]\n__main__ ['train.py', '--epochs', '3']\n", done.stderr
    assert done.returncode == 0


def test_globals_of_main_live_until_the_end(folder: Path) -> None:
    text = """
    import atexit, pickle, torch
    VALUE = 7
    def show(): print(VALUE, pickle.loads(pickle.dumps(show)) is show)
    atexit.register(show)
    """
    assert run(folder, text).stdout == "7 True\n"


def test_failed_rank_of_mpi_ends_its_world(folder: Path) -> None:
    (folder / "lib" / "mpi4py").mkdir()
    (folder / "lib" / "mpi4py" / "__init__.py").write_text("")
    (folder / "lib" / "mpi4py" / "MPI.py").write_text(
        textwrap.dedent("""
        import os
        Is_initialized = lambda: True
        Is_finalized = lambda: False
        def Finalize(): print("finalized", flush=True)
        class COMM_WORLD:
            Get_size = staticmethod(lambda: 2)
            @staticmethod
            def Abort(code):
                print("aborted", code, flush=True)
                os._exit(code)
        """)
    )
    assert run(folder, "import mpi4py.MPI\nraise ValueError\n").stdout == "aborted 1\n"
    assert run(folder, "import mpi4py.MPI\nraise SystemExit(4)\n").stdout == "aborted 4\n"
    assert run(folder, "import mpi4py.MPI, torch\n").stdout == "finalized\n"


@pytest.mark.parametrize(
    "name",
    [
        "clary_rank",
        "clary_imports",
        "clary_jax",
        "clary_numpy",
        "clary_keras",
        "clary_torchrun",
        "clary_mpi",
        "clary_parameter_server",
    ],
)
def test_shims_are_python_3_8_and_import_the_standard_library_alone(name: str) -> None:
    tree = ast.parse(Path(SHIMS_FOLDER, f"{name}.py").read_text(), feature_version=(3, 8))
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    beside = {path.stem for path in Path(SHIMS_FOLDER).glob("*.py")}
    assert {module.split(".")[0] for module in modules} <= sys.stdlib_module_names | beside
    # methods that Python has only since 3.9
    newer = {"removeprefix", "removesuffix", "is_relative_to", "batched", "exception_group"}
    assert not newer & {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_mxnet_has_scheduler_and_server_beside_the_worker_and_they_end_with_it(tmp_path: Path) -> None:
    (tmp_path / "mxnet.py").write_text(
        "import os, pathlib, time\n"
        "pathlib.Path(os.environ['SEEN'], os.environ['DMLC_ROLE']).write_text(str(os.getpid()))\n"
        "time.sleep(60)\n"
    )
    worker = (
        "import os, pathlib, time\n"
        "seen = pathlib.Path(os.environ['SEEN'])\n"
        "while not ((seen / 'server').exists() and (seen / 'scheduler').exists()): time.sleep(0.05)\n"
        "print(os.environ['DMLC_ROLE'])\n"
        "raise SystemExit(7)\n"
    )
    variables = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "SEEN": str(tmp_path),
        "DMLC_ROLE": "worker",
        "CLARY_PS_ROLES": "scheduler,server",
    }
    shim = str(Path(SHIMS_FOLDER, "clary_parameter_server.py"))
    done = subprocess.run(
        [sys.executable, shim, sys.executable, "-c", worker],
        env=variables,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout) == (7, "worker\n")
    for role in ("scheduler", "server"):
        assert not Path("/proc", (tmp_path / role).read_text()).exists()
