"""Small trainings whose steps are recorded; `test_steps_recorder` runs it where torch is."""

import copy
import io
import os
import pickle
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from clary.contract.step_records import (
    FILE_BYTES,
    FOLDER_VARIABLE,
    HEADER_BYTES,
    NUM_ROWS,
    SWITCH_VARIABLE,
    read_header,
    read_rows,
)
from clary.train.steps import torch_hooks

SLEEP_S = 0.03
AROUND_S = 0.02  # tolerance by which a part may be shorter than its sleep: clocks and the scheduler
_AT = tempfile.TemporaryDirectory(prefix="clary-steps-")
FOLDER = _AT.name
os.environ[FOLDER_VARIABLE] = FOLDER


class Bare(torch.distributed.Work):
    """Has no `wait` of its own."""


def told():
    """Return torch's error for a work without its own `wait`."""
    try:
        return Bare().wait(timedelta(seconds=0.1))
    except RuntimeError as error:
        return str(error).splitlines()[0]


def installed_with(**variables):
    """Return the result of `install`, and whether torch is unchanged."""
    before, kept = torch.autograd.backward, dict(os.environ)
    os.environ.update(variables)
    try:
        return torch_hooks.install(), torch.autograd.backward is before
    finally:
        os.environ.update(kept)
        for name in set(os.environ) - set(kept):
            del os.environ[name]


TOLD_BEFORE = told()
SWITCHED_OFF = installed_with(**{SWITCH_VARIABLE: "0"})
NOT_WANTED = installed_with(**{FOLDER_VARIABLE: ""})
RECORDER = torch_hooks.install()
torch.set_num_threads(1)


class Slow(torch.utils.data.Dataset):
    """Items that take `SLEEP_S` each."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        time.sleep(SLEEP_S)
        return torch.full((3,), float(index))


class SlowBoth(torch.autograd.Function):
    """The identity, with slow forward and backward passes."""

    @staticmethod
    def forward(context, value):
        time.sleep(SLEEP_S)
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        time.sleep(SLEEP_S)
        return gradient


class SlowSgd(torch.optim.SGD):
    """Sleeps in each step."""

    def step(self, closure=None):
        result = super().step(closure)
        time.sleep(SLEEP_S)
        return result


def rows(folder=FOLDER, process=None):
    """Return the rows of a process's file."""
    (path,) = Path(folder).glob(f"*-{process or os.getpid()}.steps")
    return read_rows(path.read_bytes()[HEADER_BYTES:])


def model():
    torch.manual_seed(0)
    return torch.nn.Linear(3, 1)


def fresh():
    """Start a new record; the number of the last step before it is 0."""
    RECORDER.reset()
    for path in Path(FOLDER).glob("*.steps"):
        path.unlink()


def train(net, optimizer, num_steps=1):
    for _ in range(num_steps):
        net(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def at_least(value):
    return value >= SLEEP_S - AROUND_S / 2


def test_each_part_of_a_step_gets_its_time():
    fresh()
    net = model()
    optimizer = SlowSgd(net.parameters(), lr=0.1)
    for batch in DataLoader(Slow(), batch_size=1):
        SlowBoth.apply(net(batch)).sum().backward()
        optimizer.step()
    found = rows()
    assert [row.number for row in found] == [1, 2, 3, 4]
    for row in found:
        parts = (row.data_wait_s, row.forward_s, row.backward_s, row.optimizer_s)
        assert all(map(at_least, parts)), row
        assert row.communication_s == 0.0
        assert sum(parts) + row.communication_s <= row.step_s + 1e-6


def test_time_between_steps_belongs_to_no_part():
    fresh()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = DataLoader(torch.ones(4, 3), batch_size=1)
    train(net, optimizer)
    for batch in loader:
        time.sleep(SLEEP_S)  # an evaluation without training
        net(batch)
    next(iter(loader))
    train(net, optimizer)
    last = rows()[-1]
    assert last.step_s >= 4 * (SLEEP_S - AROUND_S)
    assert last.step_s - last.forward_s >= 3 * (SLEEP_S - AROUND_S), "only what follows the last batch may be forward"


def test_gradient_accumulation_is_one_step_with_all_of_its_passes():
    fresh()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        SlowBoth.apply(net(torch.ones(2, 3))).sum().backward()
    optimizer.step()
    (row,) = rows()
    assert row.backward_s >= 3 * SLEEP_S - AROUND_S
    assert row.forward_s >= 3 * SLEEP_S - AROUND_S


def test_of_two_optimizers_the_first_ends_the_step():
    fresh()
    one, two = model(), model()
    first, second = torch.optim.SGD(one.parameters(), lr=0.1), SlowSgd(two.parameters(), lr=0.1)
    for _ in range(3):
        train(one, first)
        train(two, second)
    found = rows()
    assert len(found) == 3
    assert all(at_least(row.optimizer_s) for row in found[1:]), "the other's step is in the next"


def test_an_optimizer_that_replaces_another_ends_steps_eventually():
    fresh()
    net = model()
    train(net, torch.optim.SGD(net.parameters(), lr=0.1))
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), num_steps=40)
    assert len(rows()) > 20


def test_a_closure_counts_as_forward_and_backward_and_not_as_optimizer_time():
    fresh()
    net = model()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = SlowBoth.apply(net(torch.ones(2, 3))).pow(2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    (row,) = rows()
    assert at_least(row.forward_s)
    assert at_least(row.backward_s)
    assert row.optimizer_s < row.step_s / 2


def test_a_gradient_scaler_makes_steps_and_a_skipped_step_does_not_count():
    fresh()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for factor in (1.0, float("inf"), 1.0):
        scaler.scale(net(torch.ones(2, 3)).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert len(rows()) == 2


def test_an_exception_is_passed_on_and_the_next_steps_are_correct():
    fresh()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def fails():
        raise ZeroDivisionError

    for act in (lambda: optimizer.step(fails), lambda: torch.ones(2).sum().backward()):
        try:
            act()
        except (ZeroDivisionError, RuntimeError):
            continue
        raise AssertionError("the exception has to come through")
    train(net, optimizer, num_steps=3)
    time.sleep(10 * SLEEP_S)
    train(net, optimizer)
    assert len(rows()) == 4
    assert rows()[-1].optimizer_s < 8 * SLEEP_S
    assert RECORDER.clock._stack == []


def test_an_optimizer_that_steps_inside_of_the_backward_pass_is_recorded():
    fresh()
    net = model()
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in net.parameters()}
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: optimizers[parameter].step())
    for _ in range(5):
        net(torch.ones(2, 3)).sum().backward()
    assert len(rows()) == 5


def test_a_training_in_a_separate_thread_is_recorded():
    fresh()
    net = model()
    thread = threading.Thread(target=train, args=(net, torch.optim.SGD(net.parameters(), lr=0.1), 3))
    thread.start()
    thread.join(30)
    assert len(rows()) == 3


def test_results_are_bitwise_equal_with_and_without_the_recorder():
    fresh()
    results = []
    for is_on in (True, False):
        RECORDER.is_on = is_on
        net = model()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        for batch in DataLoader(torch.arange(12.0).reshape(4, 3), batch_size=2):
            net(batch).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append([parameter.detach().clone() for parameter in net.parameters()])
    RECORDER.is_on = True
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_models_losses_and_optimizers_can_still_be_pickled_and_copied():
    fresh()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    train(net, optimizer)
    for item in (net, optimizer):
        assert b"clary" not in pickle.dumps(item)
        copy.deepcopy(item)
    buffer = io.BytesIO()
    torch.save(net, buffer)
    assert b"clary" not in buffer.getvalue()
    assert pickle.loads(pickle.dumps(torch.autograd.backward)) is torch.autograd.backward


def test_loader_workers_work_and_leave_no_files():
    fresh()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for batch in DataLoader(Slow(), batch_size=2, num_workers=2):
        net(batch).sum().backward()
        optimizer.step()
    assert [path.name for path in Path(FOLDER).iterdir()] == [f"0-{os.getpid()}.steps"]


def test_a_forked_process_has_its_own_file():
    fresh()
    net = model()
    train(net, torch.optim.SGD(net.parameters(), lr=0.1))
    pid = os.fork()
    if pid == 0:
        train(net, torch.optim.SGD(net.parameters(), lr=0.1), num_steps=2)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    train(net, torch.optim.SGD(net.parameters(), lr=0.1))
    assert len(rows(process=pid)) == 2
    assert rows()[0].number == 1


def test_the_file_keeps_the_last_steps_and_does_not_grow():
    fresh()
    net = model()
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), num_steps=NUM_ROWS + 20)
    (path,) = Path(FOLDER).glob("*.steps")
    assert path.stat().st_size == FILE_BYTES
    assert read_header(path.read_bytes()) == 0
    assert sorted(row.number for row in rows()) == list(range(21, NUM_ROWS + 21))


def test_an_unwritable_folder_ends_the_recording_and_not_the_training():
    fresh()
    net = model()
    RECORDER._folder = "/nonexistent"
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), num_steps=2)
    assert RECORDER.is_on is False
    RECORDER._folder = FOLDER
    RECORDER.is_on = True


def test_recording_is_off_if_the_environment_says_so_or_no_agent_wants_it():
    assert SWITCHED_OFF == NOT_WANTED == (None, True)
    assert RECORDER is not None
    assert torch_hooks.install() is None, "once is enough"


def test_python_works_without_their_own_wait_behave_as_before():
    assert hasattr(torch.distributed.Work.wait, torch_hooks._MARK)
    assert told() == TOLD_BEFORE


def test_several_tensors_and_tensors_without_hooks_are_passed_on():
    fresh()
    net = model()
    one, two = net(torch.ones(1, 3)).sum(), net(torch.ones(1, 3)).sum()
    torch.autograd.backward([one, two])
    torch.autograd.backward(tensors=net(torch.ones(1, 3)).sum())
    leaf = torch.ones((), requires_grad=True)
    torch.autograd.backward(leaf)
    assert leaf.grad == 1
    torch.autograd.backward(iter([net(torch.ones(1, 3)).sum()]))
    assert net.bias.grad == 4
    assert RECORDER.clock._stack == []


def test_compiled_models_and_steps_are_recorded():
    fresh()
    net = model()
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        compiled(torch.ones(2, 3)).sum().backward()
        optimizer.step()

    whole = torch.compile(step, backend="eager")
    for act in (step, step, whole, whole):
        act()
    assert len(rows()) == 4


def test_a_compiled_step_is_compiled_only_once():
    fresh()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    compiled = torch.compile(optimizer.step, backend="eager")
    for number in range(6):
        if number == 3:
            torch._dynamo.config.error_on_recompile = True
        net(torch.ones(2, 3)).sum().backward()
        compiled()
    torch._dynamo.config.error_on_recompile = False
    assert len(rows()) == 6
    reasons = "".join(map(str, torch._dynamo.utils.counters["graph_break"]))
    assert "get_ident" not in reasons, "nothing of ours is compiled"
    assert "perf_counter" not in reasons


def test_torchscript_functions_find_the_backward_pass():
    @torch.jit.script
    def script(value: torch.Tensor):
        torch.autograd.backward([value.sum()])
        return value

    leaf = torch.ones(2, requires_grad=True)
    script(leaf)
    assert leaf.grad.tolist() == [1.0, 1.0]


class Unhookable(torch.Tensor):
    """A tensor that refuses hooks."""

    def register_hook(self, hook):
        raise RuntimeError("no hooks here")


def test_a_loss_that_refuses_hooks_is_still_differentiated():
    loss = model()(torch.ones(1, 3)).sum().as_subclass(Unhookable)
    assert loss.grad_fn is not None
    assert torch_hooks._hook_first(loss, print) is None


def test_a_defect_of_the_recorder_ends_the_recording_and_not_the_training():
    fresh()
    net = model()
    RECORDER.clock.enter_optimizer = None
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), num_steps=2)
    assert RECORDER.is_on is False
    assert rows_or_none() is None
    RECORDER.reset()


def test_a_closed_descriptor_that_is_another_file_now_is_not_written():
    fresh()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    train(net, optimizer)
    descriptor = RECORDER._file._descriptor
    with tempfile.TemporaryFile() as theirs:
        os.dup2(theirs.fileno(), descriptor)
        train(net, optimizer)
        assert os.fstat(theirs.fileno()).st_size == 0
        RECORDER.reset()
        os.fstat(descriptor)  # the program's file is still open
        os.close(descriptor)


def rows_or_none():
    """Return the rows of this process, or None if there is no file."""
    return rows() if list(Path(FOLDER).glob("*.steps")) else None


def test_no_files_are_left():
    _AT.cleanup()
    assert not Path(FOLDER).exists()
