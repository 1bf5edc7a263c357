"""Processes that get SIGTERM at once, later, or never."""

from typing import Any

from clary.agent.host.stopping.stop_policy import ProcessView, decide_deferrals


def view(pid: int, parent: int, name: str, **fields: Any) -> ProcessView:
    pipes = {key: frozenset(fields.pop(key, ())) for key in ("reads", "prints_to")}
    return ProcessView(pid=pid, parent=parent, name=name, dies_of_sigterm=fields.pop("dies", True), **pipes)


def deferred(*views: ProcessView) -> dict[int, frozenset[int] | None]:
    return {pid: deferral.until for pid, deferral in decide_deferrals(views).items()}


def test_a_program_without_pipes_gets_sigterm_at_once() -> None:
    assert deferred(view(2, 1, "python"), view(3, 2, "python")) == {}


def test_a_driver_waits_for_the_ranks_whose_output_it_reads() -> None:
    shell = view(2, 1, "bash")
    driver = view(3, 2, "python3", reads=[10])
    torchrun = view(4, 3, "torchrun", dies=False, prints_to=[10])
    ranks = [view(pid, 4, "python3", dies=False, prints_to=[10]) for pid in (5, 6)]
    assert deferred(shell, driver, torchrun, *ranks) == {3: frozenset((4, 5, 6))}


def test_a_reader_with_a_signal_handler_gets_sigterm_at_once() -> None:
    assert deferred(view(2, 1, "python", dies=False, reads=[10]), view(3, 2, "python", prints_to=[10])) == {}


def test_tee_waits_for_its_neighbours_in_the_pipeline() -> None:
    shell, trainer = view(2, 1, "bash"), view(3, 2, "python", dies=False, prints_to=[10])
    grep, tee = view(4, 2, "grep", reads=[10], prints_to=[11]), view(5, 2, "tee", reads=[11])
    assert deferred(shell, trainer, grep, tee) == {4: frozenset((3,)), 5: frozenset((4,))}


def test_a_shell_that_reads_a_pipe_gets_sigterm_at_once() -> None:
    assert deferred(view(2, 1, "bash", reads=[10]), view(3, 2, "python", prints_to=[10])) == {}


def test_a_parent_waits_for_the_child_that_it_reads_but_not_the_reverse() -> None:
    parent, child = view(2, 1, "python", reads=[10], prints_to=[11]), view(3, 2, "python", reads=[11], prints_to=[10])
    assert deferred(parent, child) == {2: frozenset((3,))}


def test_processes_that_read_each_other_get_sigterm_at_once() -> None:
    views = [view(2, 1, "a", reads=[10], prints_to=[12]), view(3, 1, "b", reads=[11], prints_to=[10])]
    assert deferred(*views, view(4, 1, "c", reads=[12], prints_to=[11])) == {}


def test_mpirun_and_its_daemons_never_get_sigterm_and_their_ranks_do() -> None:
    views = [
        view(2, 1, "python3", reads=[10]),
        view(3, 2, "mpirun", dies=False, prints_to=[10]),
        view(4, 3, "python3", dies=False),
        view(5, 3, "ssh"),
    ]
    assert deferred(*views) == {2: frozenset((3,)), 3: None, 5: None}


def test_mpirun_without_children_gets_sigterm() -> None:
    assert deferred(view(2, 1, "mpirun", dies=False)) == {}


def test_the_session_under_which_a_daemon_runs_is_kept_and_the_server_that_listens_is_not() -> None:
    views = [
        view(2, 1, "sshd", dies=False),
        view(3, 2, "sshd", dies=False),
        view(4, 3, "bash"),
        view(5, 4, "orted", dies=False),
        view(6, 5, "python3", dies=False),
    ]
    assert deferred(*views) == {3: None, 4: None, 5: None}


def test_a_tunnel_of_the_user_gets_sigterm() -> None:
    assert deferred(view(2, 1, "bash"), view(3, 2, "ssh"), view(4, 1, "sshd"), view(5, 4, "sshd")) == {}
