"""The first cause, from facts of several hosts that arrive in any order."""

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.agent.environments import installation
from clary.agent.environments.interpreter import require_interpreter
from clary.base.errors import AgentError, Fault
from clary.contract.agent_protocol import Clue, Failure, GpuError, HostFacts, HostPhase, ProcessExit
from clary.contract.failure_reasons import OUT_OF_MEMORY
from clary.control.jobs.failure_words import Weight
from clary.control.jobs.first_cause import find_first_cause, moments
from clary.control.jobs.training_job import HostRecord
from clary.control.jobs.verdicts import Verdict, judge

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds):
    return START + timedelta(seconds=seconds)


def ended(rank, seconds, *, code=1, signum=None, by_agent=False):
    return ProcessExit(
        rank=rank,
        local_rank=0,
        pid=100,
        exit_code=None if signum else code,
        signal=signum,
        ended_at=at(seconds),
        is_consequence=by_agent,
    )


def clue(rank, seconds, text):
    return Clue(rank=rank, at=at(seconds), text=text)


def host(*exits, clues=(), failure=None, failure_file=None, phase=HostPhase.EXITED, lost_why="", last_sign_s=None):
    facts = HostFacts(
        phase=phase,
        phase_started_at=at(50),
        exits=exits,
        clues=clues,
        failure=failure,
        failure_file=failure_file,
    )
    return HostRecord(facts=facts, lost_why=lost_why, last_sign_at=None if last_sign_s is None else at(last_sign_s))


def test_the_first_exception_is_the_cause_though_its_process_ends_last():
    hosts = {
        "algo-1": host(ended(0, 2.0), clues=(clue(0, 2.0, "ConnectionResetError: [Errno 104]"),)),
        "algo-2": host(ended(2, 9.0), clues=(clue(2, 1.0, "KeyError: 'label'"),)),
    }
    cause = find_first_cause(hosts)
    assert (cause.host, cause.rank, cause.exit_code) == ("algo-2", 2, 1)
    assert cause.message == "rank 2: KeyError: 'label'"
    assert cause.reason == ("AlgorithmError: algo-2: rank 2: KeyError: 'label', exit code: 1")
    assert (cause.verdict, cause.is_retryable) == ("user", False)


def test_connections_that_break_are_effects_of_a_silent_death():
    broken = "torch.distributed.DistBackendError: Connection closed by peer"
    hosts = {
        "algo-1": host(ended(0, 1.0), ended(1, 1.1), clues=(clue(0, 1.0, broken), clue(1, 1.1, broken))),
        "algo-2": host(ended(2, 1.2, signum=11), ended(3, 1.3, by_agent=True, signum=15)),
    }
    cause = find_first_cause(hosts)
    assert (cause.host, cause.rank, cause.exit_code) == ("algo-2", 2, 139)
    assert cause.message == "rank 2 was ended by signal 11 (SIGSEGV)"


def test_a_broken_connection_that_nothing_else_explains_is_the_cause():
    cause = find_first_cause({"algo-1": host(ended(0, 1.0), clues=(clue(0, 1.0, "ConnectionRefusedError: nobody"),))})
    assert (cause.rank, cause.verdict, cause.is_retryable) == (0, "network", True)


def test_a_launcher_never_hides_the_rank_that_failed():
    wrapper = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
    hosts = {"algo-1": host(ended(None, 3.0), clues=(clue(None, 0.5, wrapper), clue(1, 2.0, "ValueError: bad")))}
    cause = find_first_cause(hosts)
    assert (cause.rank, cause.message) == (1, "rank 1: ValueError: bad")


@pytest.mark.parametrize(
    ("exits", "code"),
    [
        ([ended(None, 3.0, code=3)], 3),
        ([ended(None, 3.0, signum=9)], 137),
        ([ended(0, 3.0, code=3)], None),
        ([ended(None, 3.0, code=3), ended(None, 3.1, code=4)], None),
    ],
)
def test_a_rank_that_the_agent_did_not_start_has_the_exit_code_of_its_launcher_or_none(exits, code):
    cause = find_first_cause({"algo-1": host(*exits, clues=(clue(7, 2.0, "ValueError: bad"),))})
    assert (cause.rank, cause.exit_code) == (7, code)
    assert cause.reason == "AlgorithmError: algo-1: rank 7: ValueError: bad" + (f", exit code: {code}" if code else "")


def test_a_rank_started_from_another_host_belongs_to_the_host_of_its_clue():
    hosts = {
        "algo-1": host(ended(None, 3.0), clues=(clue(2, 2.1, "ValueError: bad"),)),
        "algo-2": host(ended(None, 3.1, code=0), clues=(clue(2, 2.0, "ValueError: bad"),)),
    }
    for names in itertools.permutations(hosts):
        cause = find_first_cause({name: hosts[name] for name in names})
        assert (cause.host, cause.rank, cause.exit_code) == ("algo-2", 2, None)
    assert [moment.rank for moment in moments(hosts)] == [2, None]


@pytest.mark.parametrize(("node", "place"), [("algo-2", "algo-2"), ("localhost", "algo-1"), ("algo-10", "algo-1")])
def test_a_rank_that_a_signal_ended_belongs_to_the_host_that_mpirun_names(node, place):
    words = f"process rank 3 with PID 0 on node {node} exited on signal 11 (Segmentation fault)."
    message = f"the program ended with exit code 139: {words}"
    failure = Failure(fault=Fault.ALGORITHM.value, message=message, exit_code=139)
    launcher = host(ended(None, 3.0, code=139), clues=(clue(3, 2.9, words),), failure=failure)
    hosts = {"algo-1": launcher, "algo-2": host(ended(None, 3.1, code=0))}
    cause = find_first_cause(hosts)
    assert (cause.host, cause.rank, cause.exit_code) == (place, 3, 139)
    assert cause.message == "rank 3 was ended by signal 11 (SIGSEGV)"
    assert (cause.verdict, cause.is_retryable) == ("user", False)
    assert [moment.weight for moment in moments(hosts)] == [Weight.OWN, Weight.WRAPPER]


def test_a_rank_that_the_memory_limit_ended_under_mpirun_is_no_victim_of_its_host():
    failure = Failure(fault=Fault.ALGORITHM.value, message=f"{OUT_OF_MEMORY}: the host's memory limit of 64 MiB")
    words = "process rank 1 with PID 0 on node algo-1 exited on signal 9 (Killed)."
    hosts = {"algo-1": host(ended(None, 3.0, code=137), clues=(clue(1, 2.9, words),), failure=failure)}
    cause = find_first_cause(hosts)
    assert (cause.rank, cause.message) == (1, failure.message)
    assert (cause.verdict, cause.is_retryable) == ("memory", False)


def test_a_rank_that_the_memory_limit_of_another_host_ended_under_mpirun_is_no_victim_either():
    failure = Failure(fault=Fault.ALGORITHM.value, message=f"{OUT_OF_MEMORY}: the host's memory limit of 64 MiB")
    words = "process rank 3 with PID 0 on node algo-2 exited on signal 9 (Killed)."
    hosts = {
        "algo-1": host(ended(None, 3.0, code=137), clues=(clue(3, 2.9, words),)),
        "algo-2": host(ended(None, 3.1, code=0), failure=failure),
    }
    cause = find_first_cause(hosts)
    assert (cause.host, cause.rank, cause.message) == ("algo-2", 3, failure.message)
    assert (cause.verdict, cause.is_retryable) == ("memory", False)


def test_a_memory_limit_is_the_cause_for_the_killed_rank_not_for_its_neighbour():
    failure = Failure(fault=Fault.ALGORITHM.value, message=f"{OUT_OF_MEMORY}: the host's memory limit of 64 MiB")
    neighbour = clue(1, 1.0, "ConnectionResetError: [Errno 104] Connection reset by peer")
    hosts = {"algo-1": host(ended(1, 1.0), ended(0, 1.001, signum=9), clues=(neighbour,), failure=failure)}
    cause = find_first_cause(hosts)
    assert (cause.rank, cause.message, cause.exit_code) == (0, failure.message, 137)


def test_a_memory_limit_that_the_program_survived_is_no_failure_of_the_job():
    failure = Failure(fault=Fault.ALGORITHM.value, message=f"{OUT_OF_MEMORY}: the host's memory limit of 64 MiB")
    assert find_first_cause({"algo-1": host(ended(0, 1.0, code=0), failure=failure)}) is None


def test_a_memory_limit_that_killed_the_hosts_first_process_is_the_cause():
    failure = Failure(fault=Fault.ALGORITHM.value, message=f"{OUT_OF_MEMORY}: the host's memory limit of 64 MiB")
    hosts = {"algo-1": host(ended(0, 1.0, signum=9, by_agent=True), failure=failure)}
    assert find_first_cause(hosts).verdict == "memory"


def test_clues_are_no_failure_if_every_process_succeeded():
    hosts = {"algo-1": host(ended(None, 3.0, code=0), clues=(clue(2, 2.0, "ValueError: survived"),))}
    assert find_first_cause(hosts) is None


def test_a_clue_of_a_rank_that_succeeded_is_no_cause():
    hosts = {
        "algo-1": host(ended(0, 3.0, code=0), ended(1, 2.0, code=3), clues=(clue(0, 1.0, "ValueError: survived"),))
    }
    assert find_first_cause(hosts).rank == 1


def test_earlier_output_of_a_killed_process_does_not_explain_its_end():
    printed = clue(1, 0.5, "ConnectionResetError: tried again and went on")
    failure = Failure(fault=Fault.ALGORITHM.value, message="rank 1 was ended by signal 9 (SIGKILL): BrokenPipeError: x")
    hosts = {
        "algo-1": host(ended(0, 2.0), clues=(clue(0, 2.0, "ConnectionResetError: [Errno 104]"),)),
        "algo-2": host(ended(1, 1.9, signum=9), clues=(printed,), failure=failure),
    }
    cause = find_first_cause(hosts)
    assert (cause.host, cause.rank, cause.exit_code) == ("algo-2", 1, 137)
    assert (cause.verdict, cause.is_retryable) == ("host", True)
    assert [moment.at for moment in moments(hosts)] == [at(1.9), at(2.0)]


def test_clues_of_a_stopped_process_count_only_if_they_came_first():
    victim = ended(1, 3.0, by_agent=True)
    after = host(ended(0, 2.0), victim, clues=(clue(1, 2.5, "RuntimeError: told to stop"),))
    assert find_first_cause({"algo-1": after}).rank == 0
    before = host(ended(0, 2.0), victim, clues=(clue(1, 1.5, "RuntimeError: diverged"),))
    cause = find_first_cause({"algo-1": before})
    assert (cause.rank, cause.exit_code, cause.message) == (1, None, "rank 1: RuntimeError: diverged")


def test_facts_of_the_agent_take_precedence_over_an_exit_code():
    failure = Failure(fault=Fault.ALGORITHM.value, message=f"{OUT_OF_MEMORY}: the host's memory limit of 64 MiB")
    cause = find_first_cause({"algo-1": host(ended(0, 1.0, signum=9), failure=failure)})
    assert cause.message == failure.message
    assert (cause.verdict, cause.is_retryable, cause.exit_code) == ("memory", False, 137)


def test_the_failure_file_replaces_the_message_and_not_the_facts():
    hosts = {"algo-1": host(ended(0, 1.0), clues=(clue(0, 1.0, "ValueError: x"),), failure_file="the table is empty")}
    cause = find_first_cause(hosts)
    assert cause.reason == "AlgorithmError: the table is empty, exit code: 1"
    assert (cause.host, cause.rank) == ("algo-1", 0)


def test_a_lost_host_explains_connections_that_broke_before_it_was_declared_lost():
    hosts = {
        "algo-1": host(ended(0, 1.0), clues=(clue(0, 1.0, "RuntimeError: Connection closed by peer [10.0.0.2]"),)),
        "algo-2": host(phase=HostPhase.LOST, lost_why="algo-2 was lost: its agent has been silent for 5.0 s"),
    }
    cause = find_first_cause(hosts)
    assert (cause.host, cause.verdict, cause.is_retryable) == ("algo-2", "host", True)
    assert cause.reason.startswith("InternalServerError: algo-2 was lost")


LOST_WHY = "algo-2 was lost: its agent ended in phase running without leave"


def lost(last_sign_s, *exits, **facts):
    return host(*exits, phase=HostPhase.LOST, lost_why=LOST_WHY, last_sign_s=last_sign_s, **facts)


@pytest.mark.parametrize(
    "words",
    ["SystemExit: exit code 1", "SystemExit: my peer is gone", "RuntimeError: training failed", "ConnectionError: x"],
)
def test_an_exit_after_the_last_sign_of_a_lost_host_is_an_effect_of_its_loss(words):
    """The loss is noticed at 50 s, long after the rank's end at 10 s."""
    survivor = host(ended(0, 10.0), clues=(clue(0, 10.0, words),))
    for hosts in ({"algo-1": survivor, "algo-2": lost(9.5)}, {"algo-2": lost(9.5), "algo-1": survivor}):
        cause = find_first_cause(hosts)
        assert (cause.host, cause.message, cause.is_retryable) == ("algo-2", LOST_WHY, True)
        assert (cause.fault, cause.may_be_answer) == ("infrastructure", False)


def test_a_rank_that_exits_before_the_last_sign_of_a_lost_host_is_the_cause():
    survivor = host(ended(0, 9.0, code=3), clues=(clue(0, 9.0, "SystemExit: exit code 3"),))
    cause = find_first_cause({"algo-1": survivor, "algo-2": lost(9.5)})
    assert (cause.host, cause.exit_code, cause.fault) == ("algo-1", 3, "algorithm")


def test_an_error_of_the_code_is_no_effect_of_a_lost_host():
    survivor = host(ended(0, 10.0), clues=(clue(0, 10.0, "KeyError: 'label'"),))
    cause = find_first_cause({"algo-1": survivor, "algo-2": lost(9.5)})
    assert (cause.host, cause.message) == ("algo-1", "rank 0: KeyError: 'label'")


def test_an_exit_that_the_lost_host_itself_reported_is_no_effect_of_its_loss():
    cause = find_first_cause({"algo-1": host(), "algo-2": lost(9.5, ended(2, 10.0, code=3))})
    assert (cause.host, cause.rank, cause.exit_code) == ("algo-2", 2, 3)


def test_an_exit_on_a_cut_off_host_is_an_effect_of_the_cut():
    record = replace(lost(9.5, ended(2, 10.0)), is_cut_off=True)
    assert find_first_cause({"algo-1": host(), "algo-2": record}).message == LOST_WHY


@pytest.mark.parametrize(("reaped_s", "cause_rank"), [(10.4, 2), (12.0, 0)])
def test_a_killed_rank_counts_from_before_its_reaping(reaped_s, cause_rank):
    """The other rank sees the broken connection and exits before the dead rank has been reaped."""
    hosts = {
        "algo-1": host(ended(0, 10.1), clues=(clue(0, 10.0, "SystemExit: exit code 1"),)),
        "algo-2": host(ended(2, reaped_s, signum=9)),
    }
    assert find_first_cause(hosts).rank == cause_rank


@pytest.mark.parametrize(
    ("exit_of_rank", "words", "may_be_answer"),
    [
        (ended(0, 1.0), "SystemExit: exit code 1", True),
        (ended(0, 1.0), "SystemExit: a peer is gone", True),
        (ended(0, 1.0), "ConnectionResetError: [Errno 104]", True),
        (ended(0, 1.0), "RuntimeError: loss is not finite", False),
        (ended(0, 1.0), "ValueError: x", False),
        (ended(0, 1.0), "MemoryError", False),
        (ended(0, 1.0, signum=6), "", True),
        (ended(0, 1.0, signum=13), "", True),
        (ended(0, 1.0, signum=9), "", False),
        (ended(0, 1.0, signum=11), "", False),
    ],
)
def test_exits_that_may_be_effects_of_an_unnoticed_loss_are_marked(exit_of_rank, words, may_be_answer):
    cause = find_first_cause({"algo-1": host(exit_of_rank, clues=(clue(0, 1.0, words),) if words else ())})
    assert cause.may_be_answer is may_be_answer


def test_the_last_line_of_output_is_no_message_of_an_exception():
    failure = Failure(fault=Fault.ALGORITHM.value, message="rank 0 ended with exit code 1: caught: timed out")
    cause = find_first_cause({"algo-1": host(ended(0, 1.0), failure=failure)})
    assert (cause.message, cause.may_be_answer) == (failure.message, True)


def test_a_rank_that_was_exiting_when_it_was_stopped_has_its_own_exit_code():
    effect = "ConnectionResetError: [Errno 104] Connection reset by peer"
    hosts = {
        "algo-1": host(ended(0, 2.0), clues=(clue(0, 1.9, effect),)),
        "algo-2": host(ended(2, 2.5, by_agent=True, signum=15), clues=(clue(2, 1.8, "SystemExit: exit code 3"),)),
    }
    cause = find_first_cause(hosts)
    assert (cause.rank, cause.exit_code, cause.message) == (2, 3, "rank 2 ended with exit code 3")
    assert cause.reason == "AlgorithmError: algo-2: rank 2 ended with exit code 3, exit code: 3"


def test_a_clue_of_a_stopped_rank_may_be_an_effect_of_a_loss():
    leaving = host(ended(0, 11.0, by_agent=True, signum=15), clues=(clue(0, 10.0, "SystemExit: my peer is gone"),))
    other = host(ended(1, 10.5), clues=(clue(1, 10.5, "ConnectionResetError: x"),))
    assert find_first_cause({"algo-1": leaving, "algo-2": lost(9.5), "algo-3": other}).host == "algo-2"


def test_hosts_without_failures_have_no_cause():
    assert find_first_cause({"algo-1": host(ended(0, 1.0, code=0)), "algo-2": host()}) is None


@given(st.permutations(range(4)), st.integers(0, 3))
def test_the_first_failed_rank_is_named_for_any_order_of_reports(order, first):
    """Four ranks on two hosts; the first raises, the others lose their connections in any order, soon after."""
    exits, clues = {}, {}
    for place, rank in enumerate(order):
        is_first = rank == first
        exits[rank] = ended(rank, 10.0 if is_first else 1.0 + place / 100)
        text = "ZeroDivisionError: division by zero" if is_first else "RuntimeError: Connection reset by peer"
        clues[rank] = clue(rank, 0.9 if is_first else 1.0 + place / 100, text)
    hosts = {
        name: host(*(exits[rank] for rank in ranks), clues=tuple(clues[rank] for rank in ranks))
        for name, ranks in (("algo-1", (0, 1)), ("algo-2", (2, 3)))
    }
    for names in itertools.permutations(hosts):
        cause = find_first_cause({name: hosts[name] for name in names})
        assert (cause.rank, cause.host) == (first, "algo-1" if first < 2 else "algo-2")
    assert len(moments(hosts)) == 4


@pytest.mark.parametrize(
    ("words", "verdict", "is_retryable"),
    [
        ("rank 0 ended with exit code 1: ModuleNotFoundError: No module named 'timeouterror'", Verdict.USER, False),
        ("rank 0 ended with exit code 1: MemoryError", Verdict.MEMORY, False),
        ("rank 0 ended with exit code 1: torch.OutOfMemoryError: CUDA out of memory", Verdict.MEMORY, False),
        ("rank 1 ended with exit code 1: OSError: [Errno 28] No space left on device", Verdict.DISK, False),
        ("the program ended with exit code 127: train.sh: line 2: nvcc: command not found", Verdict.LAUNCHER, False),
        ("rank 0 ended with exit code 1: FileNotFoundError: '/opt/ml/input/data/train/a.csv'", Verdict.DATA, False),
        ("rank 0 was ended by signal 9 (SIGKILL)", Verdict.HOST, True),
        ("rank 0 was ended by signal 11 (SIGSEGV)", Verdict.USER, False),
        ("rank 0 ended with exit code 3", Verdict.USER, False),
    ],
)
def test_messages_of_programs_are_judged(words, verdict, is_retryable):
    judgement = judge(Fault.ALGORITHM, words)
    assert (judgement.verdict, judgement.is_retryable) == (verdict, is_retryable)


@pytest.mark.parametrize(
    ("fault", "words", "may_retry", "verdict", "is_retryable"),
    [
        (Fault.USER, "Channel train: s3://b/none holds no object", False, Verdict.DATA, False),
        (Fault.INTERNAL, "TypeError: x (a defect of the agent)", True, Verdict.INTERNAL, False),
        (Fault.CAPACITY, "no hosts", False, Verdict.HOST, True),
        (Fault.INFRASTRUCTURE, "object store: connection refused", True, Verdict.NETWORK, True),
        (Fault.INFRASTRUCTURE, "algo-2 was lost", True, Verdict.HOST, True),
    ],
)
def test_failures_outside_the_program_are_judged_by_their_fault(fault, words, may_retry, verdict, is_retryable):
    judgement = judge(fault, words, may_retry=may_retry)
    assert (judgement.verdict, judgement.is_retryable) == (verdict, is_retryable)


def test_a_program_missing_on_the_machine_is_not_retried(tmp_path, monkeypatch):
    monkeypatch.setattr(installation.sys, "executable", str(tmp_path / "python"))
    for call, argument in ((installation.find_uv, {"PATH": str(tmp_path)}), (require_interpreter, "/no/bin/python")):
        with pytest.raises(AgentError) as caught:
            call(argument)
        judgement = judge(caught.value.fault, f"algo-1: {caught.value.message}", may_retry=caught.value.retryable)
        assert (judgement.verdict, judgement.is_retryable) == (Verdict.LAUNCHER, False)
    slow = "The job's Python interpreter /a/python cannot be used: it did not answer in 120 s."
    assert judge(Fault.INFRASTRUCTURE, slow).is_retryable


def with_gpu_error(record, xid, seconds, *, gpu=1):
    """Return a host whose driver reported an error within the half second before `seconds`."""
    error = GpuError(gpu=gpu, xid=xid, not_before=at(seconds - 0.5), at=at(seconds))
    return replace(record, facts=replace(record.facts, gpu_errors=(error,)))


CUDA_ERROR = "torch.AcceleratorError: CUDA error: unspecified launch failure"


def test_a_failed_gpu_is_the_cause_of_its_ranks_errors():
    hosts = {
        "algo-1": host(ended(0, 9.1), clues=(clue(0, 9.1, "torch.distributed.DistBackendError: NCCL error"),)),
        "algo-2": with_gpu_error(host(ended(1, 9.0), clues=(clue(1, 8.9, CUDA_ERROR),)), 79, 9.3),
    }
    cause = find_first_cause(hosts)
    assert (cause.host, cause.rank, cause.fault) == ("algo-2", None, Fault.INFRASTRUCTURE.value)
    assert cause.message == "GPU 1 has failed: Xid 79, the GPU has fallen off the bus"
    assert (cause.verdict, cause.is_retryable, cause.exit_code) == (Verdict.HOST.value, True, None)


def test_a_gpu_may_have_failed_long_before_its_waiting_ranks_time_out():
    waiting = clue(0, 610.0, "torch.distributed.DistBackendError: Watchdog caught collective operation timeout")
    hosts = {"algo-1": with_gpu_error(host(ended(0, 611.0), clues=(waiting,)), 119, 8.0, gpu=0)}
    assert find_first_cause(hosts).message.startswith("GPU 0 has failed: Xid 119")


def test_a_gpu_error_that_the_program_outlived_is_not_the_cause():
    record = host(ended(0, 4000.0), clues=(clue(0, 4000.0, CUDA_ERROR),))
    assert "CUDA error" in find_first_cause({"algo-1": with_gpu_error(record, 74, 9.0)}).message


def test_a_gpu_error_first_read_at_the_failure_may_be_too_old_to_blame():
    record = host(ended(0, 4000.0), clues=(clue(0, 4000.0, CUDA_ERROR),))
    for not_before, is_blamed in ((10.0, False), (3500.0, True)):
        error = GpuError(gpu=0, xid=94, not_before=at(not_before), at=at(4001.0))
        blamed = replace(record, facts=replace(record.facts, gpu_errors=(error,)))
        assert find_first_cause({"algo-1": blamed}).message.startswith("GPU 0 has failed") is is_blamed


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 63, 777])
def test_a_gpu_error_that_programs_cause_is_the_programs_fault(xid):
    record = host(ended(0, 9.0), clues=(clue(0, 9.0, CUDA_ERROR),))
    cause = find_first_cause({"algo-1": with_gpu_error(record, xid, 8.9)})
    assert (cause.rank, cause.fault, cause.is_retryable) == (0, Fault.ALGORITHM.value, False)


def test_an_error_of_the_code_stays_the_cause_despite_gpu_errors():
    hosts = {
        "algo-1": host(ended(0, 9.0), clues=(clue(0, 9.0, "KeyError: 'label'"),)),
        "algo-2": with_gpu_error(host(ended(1, 9.5), clues=(clue(1, 9.4, CUDA_ERROR),)), 94, 9.2),
    }
    assert find_first_cause(hosts).message == "rank 0: KeyError: 'label'"


def test_gpu_errors_of_another_host_or_of_a_later_time_explain_nothing():
    failed = host(ended(0, 9.0), clues=(clue(0, 9.0, CUDA_ERROR),))
    for elsewhere in (with_gpu_error(host(ended(1, 9.5, by_agent=True)), 79, 8.0), with_gpu_error(host(), 79, 30.0)):
        assert find_first_cause({"algo-1": failed, "algo-2": elsewhere}).host == "algo-1"
    assert find_first_cause({"algo-1": with_gpu_error(failed, 79, 30.0)}).rank == 0


def test_the_failed_gpu_is_the_cause_of_a_program_ended_for_a_hang():
    hung = Failure(fault=Fault.INFRASTRUCTURE.value, message="the program got nowhere", retryable=True, at=at(300))
    record = host(ended(0, 301.0, signum=9, by_agent=True), failure=hung)
    assert find_first_cause({"algo-1": with_gpu_error(record, 79, 20.0)}).message.startswith("GPU 1 has failed")
