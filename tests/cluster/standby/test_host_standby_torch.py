"""Ranks forked from an interpreter that has imported torch: they reduce together, and start sooner. Needs root."""

import os
import time
from pathlib import Path

import pytest
from host_world import PACKAGE_FOLDER, HostWorld, Listener, eventually, process

from clary.agent.environments.config_files import make_folders, steps_folder
from clary.agent.environments.train_library import library_folder, write_train_library
from clary.agent.host.program import Program
from clary.agent.host.sandbox import Bind
from clary.agent.host.standby import StandbyHost
from clary.agent.host.standby_policy import PRELOAD
from clary.agent.zygote.interpreter_start import RANK_SHIM
from clary.contract.ml_tree import MlTree

TRAIN_PYTHON = Path(__file__).resolve().parents[3] / ".venvs/train/bin/python"
ENOUGH_S = 50.0
NUM_RANKS = 2
MODULES = "/srv/modules"
MOMENTS = ("first line", "reduced", "optimizer")

SCRIPT = """
import os, sys
was_there = "torch" in sys.modules
assert ("torch._dynamo" in sys.modules) == ("clary.train.steps.torch_hooks" in sys.modules) == was_there
print("first line", flush=True)
import numpy, torch
import torch.distributed as distributed
rank = int(os.environ["RANK"])
distributed.init_process_group("gloo", init_method="file:///opt/ml/meeting", rank=rank, world_size=int(sys.argv[1]))
sum_of_ranks = torch.full((1000,), rank + 1.0)
distributed.all_reduce(sum_of_ranks)
print("reduced", sum_of_ranks.sum().item(), flush=True)
print(was_there, "clary_autoload" in sys.modules, torch.initial_seed(), torch.get_num_threads(), flush=True)
import importlib.util
import clary.train.steps.torch_hooks as hooks
import clary.train.collective
found = [importlib.util.find_spec("clary." + name) is not None for name in ("train", "contract", "base", "agent")]
print(found, list(clary.__path__), os.path.realpath(hooks.__file__), os.path.realpath(clary.train.collective.__file__))
torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
print("optimizer", flush=True)
x = torch.ones(64, 64, requires_grad=True)
(x @ x).sum().backward()
print(x.grad.sum().item(), numpy.random.random())
"""

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="the interpreter lies where only root may read"),
    pytest.mark.needs("train"),
]


class TimedListener(Listener):
    """Records the time at which each text was printed."""

    def __init__(self):
        super().__init__()
        self.seen_at_s = {}

    def __call__(self, index, data):
        super().__call__(index, data)
        for text in MOMENTS:
            if text in self.text(index):
                self.seen_at_s.setdefault((text, index), time.monotonic())

    def last_s(self, text):
        return max((at for (seen, _), at in self.seen_at_s.items() if seen == text), default=0.0)


@pytest.fixture
def world():
    world = HostWorld("root")
    yield world
    world.close()


def ranks(code, library, variables):
    shims = str(Path(RANK_SHIM).parent)
    return [
        process(
            *(str(TRAIN_PYTHON), RANK_SHIM, "train.py", str(NUM_RANKS)),
            environment={
                "PYTHONPATH": f"{code}:{shims}:{MODULES}:{library}",
                "PYTHONUNBUFFERED": "1",
                "OMP_NUM_THREADS": "1",
                "RANK": str(rank),
                "HOME": "/opt/ml/.clary/home",
                "GLOO_SOCKET_IFNAME": "lo",
                **variables,
            },
            working_folder=code,
            rank=rank,
            local_rank=rank,
        )
        for rank in range(NUM_RANKS)
    ]


def run(world, *, is_prepared, script=SCRIPT, variables=None, files=None):
    """Run a script on a new host; return the output of each rank and the seconds to each of `MOMENTS`."""
    modules, tree = world.folder(f"modules-{is_prepared}"), MlTree(Path("/opt/ml"))
    environment = (str(TRAIN_PYTHON.parents[1]), str(TRAIN_PYTHON.resolve().parents[1]))
    visible = (PACKAGE_FOLDER, *environment)
    sandbox = world.sandbox(binds=(Bind(source=str(modules), target=MODULES),), visible_folders=visible)
    processes, listener = ranks("/opt/ml", str(library_folder(tree)), variables or {}), TimedListener()
    standby = None
    if is_prepared:
        (modules / "last_module.py").write_text(f"open('{MODULES}/is-ready', 'w').close()")
        standby = StandbyHost.prepare(
            sandbox,
            python=str(TRAIN_PYTHON),
            environment=processes[0].environment,
            preload=(*PRELOAD, "last_module"),
            num_ahead=NUM_RANKS,
        )
    try:
        write_train_library(MlTree(Path(sandbox.ml_folder)))
        make_folders(MlTree(Path(sandbox.ml_folder)))
        for name, text in {"train.py": script, **(files or {})}.items():
            path = Path(sandbox.ml_folder) / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        if standby is not None:
            eventually((modules / "is-ready").exists, within_s=ENOUGH_S)
            time.sleep(3)  # the zygote starts further imports, which an order waits for
        began_s = time.monotonic()
        if standby is not None:
            program = standby.start(processes, on_output=listener)
        else:
            program = Program.start(processes, sandbox, on_output=listener)
        with program:
            result = program.wait(ENOUGH_S)
            assert result is not None, [listener.text(rank) for rank in range(NUM_RANKS)]
        output = [listener.text(rank) for rank in range(NUM_RANKS)]
        assert [end.exit_code for end in result.exits] == [0] * NUM_RANKS, output
        assert program.num_forked == (NUM_RANKS if is_prepared else 0), program.why_not_forked
        return output, [listener.last_s(text) - began_s for text in MOMENTS]
    finally:
        if standby is not None:
            standby.close()


@pytest.mark.long(11)
def test_forked_ranks_reduce_together_with_torch_in_its_freshly_imported_state(world):
    executed, executed_s = run(world, is_prepared=False)
    forked, forked_s = run(world, is_prepared=True)
    print(
        f"{NUM_RANKS} ranks, seconds to the last first line, the last allreduce and the last optimizer: "
        f"prepared {forked_s}, not prepared {executed_s}"
    )
    for rank in range(NUM_RANKS):
        (forked_first, reduced, state, library, _, last), expected = (
            text.splitlines() for text in (forked[rank], executed[rank])
        )
        assert (forked_first, reduced) == ("first line", "reduced 3000.0")
        # torch imported, the job's library imported, number of threads
        assert [word for place, word in enumerate(state.split()) if place != 2] == ["True", "True", "1"]
        assert [word for place, word in enumerate(expected[2].split()) if place != 2] == ["False", "True", "1"]
        assert library == expected[3]
        assert library.startswith("[True, True, True, False] ['/opt/ml/.clary/python/clary']")
        assert last.split()[0] == expected[5].split()[0] == "524288.0"
    texts = [text.splitlines() for text in (*forked, *executed)]
    for line, place in ((-1, -1), (2, -2)):  # each rank has its own numpy draws and torch seed
        assert len({text[line].split()[place] for text in texts}) == 2 * NUM_RANKS


SETS_A_VARIABLE = """
import os, sys
print("torch" in sys.modules, "torch._dynamo" in sys.modules)
os.environ["TORCH_COMPILE_DISABLE"] = "1"
import torch
import torch._dynamo.config
print(torch._dynamo.config.disable)
"""


@pytest.mark.long(11)
def test_a_script_that_sets_a_variable_of_torch_gets_a_new_interpreter(world):
    output, _ = run(world, is_prepared=True, script=SETS_A_VARIABLE)
    assert [text.split() for text in output] == [["False", "False", "True"]] * NUM_RANKS


RECORDS_STEPS = """
import os, sys
torch = sys.modules.get("torch")
print(torch is not None and hasattr(torch.autograd.backward, "_clary_steps"))
import torch
import torch.distributed as distributed
rank = int(os.environ["RANK"])
distributed.init_process_group("gloo", init_method="file:///opt/ml/meeting", rank=rank, world_size=int(sys.argv[1]))
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    (weight * weight).backward()
    distributed.all_reduce(weight.grad)
    optimizer.step()
from clary.contract.step_records import FOLDER_VARIABLE
names = [name.rpartition("-")[0] for name in os.listdir(os.environ[FOLDER_VARIABLE])]
print([name for name in names if name == str(rank)])
"""


@pytest.mark.long(11)
def test_hooks_installed_before_the_fork_record_each_rank_in_its_own_files(world):
    variables = {"CLARY_STEPS_FOLDER": str(steps_folder(MlTree(Path("/opt/ml"))))}
    forked, _ = run(world, is_prepared=True, script=RECORDS_STEPS, variables=variables)
    executed, _ = run(world, is_prepared=False, script=RECORDS_STEPS, variables=variables)
    for rank in range(NUM_RANKS):
        assert forked[rank].splitlines() == ["True", str([str(rank)] * 2)]
        assert executed[rank].splitlines() == ["False", str([str(rank)] * 2)]


LOOKS_FOR_SOCKETS = """
import os

def names(pid):
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            yield os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError:
            pass  # the descriptor with which the folder was read

def look():
    print("found", sorted(name for name in names("self") if name.startswith("socket:")), flush=True)
"""


@pytest.mark.long(11)
def test_code_of_the_job_that_torchs_import_calls_finds_no_socket_of_the_host(world):
    files = {
        "looks.py": LOOKS_FOR_SOCKETS,
        "looks-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: looks\nVersion: 1\n",
        "looks-1.dist-info/entry_points.txt": "[torch.backends]\nlooks = looks:look\n",
    }
    output, _ = run(world, is_prepared=True, script="import torch; print('torch', torch.ones(1).sum())", files=files)
    assert [text.splitlines()[0] for text in output] == ["found []"] * NUM_RANKS, output
