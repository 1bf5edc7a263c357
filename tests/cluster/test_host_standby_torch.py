"""Ranks that begin in an interpreter with torch imported: they compute together, and begin sooner. Needs root."""

import os
import time
from pathlib import Path

import pytest
from host_world import PACKAGE_FOLDER, HostWorld, Listener, eventually, process

from clary.agent.environments.train_library import library_folder, write_train_library
from clary.agent.host.program import Program
from clary.agent.host.sandbox import Bind
from clary.agent.host.standby import StandbyHost
from clary.agent.zygote.interpreter_start import RANK_SHIM
from clary.contract.ml_tree import MlTree

TRAIN_PYTHON = Path(__file__).resolve().parents[2] / ".venvs/train/bin/python"
ENOUGH_S = 50.0
NUM_RANKS = 2
MODULES = "/srv/modules"

SCRIPT = """
import os, sys
was_there = "torch" in sys.modules
print("first line", flush=True)
import numpy, torch
import torch.distributed as distributed
rank = int(os.environ["RANK"])
distributed.init_process_group("gloo", init_method="file:///opt/ml/meeting", rank=rank, world_size=int(sys.argv[1]))
sum_of_ranks = torch.full((1000,), rank + 1.0)
distributed.all_reduce(sum_of_ranks)
print("reduced", sum_of_ranks.sum().item(), flush=True)
print(was_there, "clary_autoload" in sys.modules, torch.initial_seed(), torch.get_num_threads(), flush=True)
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
    """Notes when a text was there."""

    def __init__(self):
        super().__init__()
        self.seen_at_s = {}

    def __call__(self, index, data):
        super().__call__(index, data)
        for text in ("first line", "reduced"):
            if text in self.text(index):
                self.seen_at_s.setdefault((text, index), time.monotonic())

    def last_s(self, text):
        return max(at for (seen, _), at in self.seen_at_s.items() if seen == text)


@pytest.fixture
def world():
    world = HostWorld("root")
    yield world
    world.close()


def ranks(code, library):
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
            },
            working_folder=code,
            rank=rank,
            local_rank=rank,
        )
        for rank in range(NUM_RANKS)
    ]


def run(world, *, is_prepared):
    """Run the script on a new host; returns the output of each rank and the two times."""
    modules, tree = world.folder(f"modules-{is_prepared}"), MlTree(Path("/opt/ml"))
    environment = (str(TRAIN_PYTHON.parents[1]), str(TRAIN_PYTHON.resolve().parents[1]))
    visible = (PACKAGE_FOLDER, *environment)
    sandbox = world.sandbox(binds=(Bind(source=str(modules), target=MODULES),), visible_folders=visible)
    processes, listener = ranks("/opt/ml", str(library_folder(tree))), TimedListener()
    standby = None
    if is_prepared:
        (modules / "last_module.py").write_text(f"open('{MODULES}/is-ready', 'w').close()")
        standby = StandbyHost.prepare(
            sandbox,
            python=str(TRAIN_PYTHON),
            environment=processes[0].environment,
            preload=("torch", "last_module"),
        )
    try:
        write_train_library(MlTree(Path(sandbox.ml_folder)))
        (Path(sandbox.ml_folder) / "train.py").write_text(SCRIPT)
        if standby is not None:
            eventually((modules / "is-ready").exists, within_s=ENOUGH_S)
            time.sleep(1)  # for what the interpreter does between its last import and its wait; only the times need it
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
        return output, [listener.last_s(text) - began_s for text in ("first line", "reduced")]
    finally:
        if standby is not None:
            standby.close()


def test_forked_ranks_reduce_together_and_torch_is_as_it_is_imported_anew(world):
    executed, executed_s = run(world, is_prepared=False)
    forked, forked_s = run(world, is_prepared=True)
    print(
        f"{NUM_RANKS} ranks, seconds to the last first line and to the last allreduce: "
        f"prepared {forked_s[0]:.3f} {forked_s[1]:.3f}, not prepared {executed_s[0]:.3f} {executed_s[1]:.3f}"
    )
    for rank in range(NUM_RANKS):
        (forked_first, reduced, state, last), expected = (text.splitlines() for text in (forked[rank], executed[rank]))
        assert (forked_first, reduced) == ("first line", "reduced 3000.0")
        # torch, the library of the job, threads
        assert [word for place, word in enumerate(state.split()) if place != 2] == ["True", "True", "1"]
        assert [word for place, word in enumerate(expected[2].split()) if place != 2] == ["False", "True", "1"]
        assert last.split()[0] == expected[3].split()[0] == "524288.0"
    for place in (-1, -4):  # numpy draws anew in each, torch begins with another seed
        assert len({text.split()[place] for text in (*forked, *executed)}) == 2 * NUM_RANKS
