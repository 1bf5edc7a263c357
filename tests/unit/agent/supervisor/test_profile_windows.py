"""Profiles of a host's ranks: requests are written, results followed and sent; files of the program are not trusted."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from clary.agent.service_client import AttemptOver, ServiceRefused, ServiceUnreachable
from clary.agent.supervisor import profile_windows
from clary.agent.supervisor.profile_windows import ProfileWindows
from clary.base.plain import from_plain, to_plain
from clary.contract.deep_profiles import ProfileRequest, RankProfile, RankState, Window

LIMIT_S = 30.0


class FakeReceiver:
    """Records profiles and traces; raises the errors in `refusals` first."""

    def __init__(self):
        self.profiles, self.traces, self.refusals = [], {}, []

    def send_profile(self, profile):
        if self.refusals:
            raise self.refusals.pop(0)
        self.profiles.append(profile)

    def send_trace(self, piece, *, number, rank, offset, is_last):
        if self.refusals:
            raise self.refusals.pop(0)
        assert offset == len(self.traces.get((number, rank), b""))
        self.traces[number, rank] = self.traces.get((number, rank), b"") + piece

    @property
    def last(self):
        return self.profiles[-1] if self.profiles else None


class Host:
    """A host's tree with the files of its ranks, and its profile windows."""

    def __init__(self, root, *, window=None):
        self.root = Path(root)
        self.folder = self.root / ".clary/profiles"
        self.folder.mkdir(parents=True)
        self.receiver = FakeReceiver()
        self.windows = ProfileWindows(
            "algo-1", attempt=1, window=window, ml_folder=lambda: self.root, receiver=self.receiver
        )

    def request(self, number=7):
        return from_plain(ProfileRequest, json.loads((self.folder / f"request-{number}.json").read_text()))

    def write(self, rank, state, *, number=7, trace=None, **members):
        out = self.folder / "out" / str(number)
        out.mkdir(parents=True, exist_ok=True)
        if trace is not None:
            (out / f"rank-{rank}.trace.json.gz").write_bytes(trace)
        draft = out / f".rank-{rank}.new"
        draft.write_text(json.dumps(to_plain(RankProfile(rank=rank, state=state, **members))))
        draft.replace(out / f"rank-{rank}.json")

    def final(self):
        return self.wait_for(lambda last: last.is_final)

    def wait_for(self, is_there):
        end_s = time.monotonic() + LIMIT_S
        while self.receiver.last is None or not is_there(self.receiver.last):
            assert time.monotonic() < end_s, self.receiver.profiles
            time.sleep(0.02)
        return self.receiver.last


@pytest.fixture
def make_host(tmp_path, monkeypatch):
    monkeypatch.setattr(profile_windows, "_POLL_S", 0.02)
    monkeypatch.setattr(profile_windows, "_SETTLE_S", 0.3)
    made = []

    def make(**options):
        made.append(Host(tmp_path, **options))
        return made[-1]

    yield make
    for host in made:
        host.windows.close()


def asked(**members):
    return ProfileRequest(**{"number": 7, "num_steps": 3, "give_up_at": time.time() + 100, **members})


def states(profile):
    return {rank.rank: rank.state for rank in profile.ranks}


def test_a_request_reaches_the_ranks_and_their_traces_the_service(make_host, monkeypatch):
    monkeypatch.setattr(profile_windows, "PIECE_BYTES", 10)
    host = make_host()
    host.windows.begin(SimpleNamespace(ranks_by_pid=lambda: {100: 0, 101: 1}), None)
    host.windows.ask(asked())
    host.windows.ask(host.request())  # the service repeats the request with the next receipt
    assert host.request().num_steps == 3
    host.write(0, RankState.RECORDING)
    assert states(host.wait_for(lambda last: last.ranks)) == {0: RankState.RECORDING}
    host.write(0, RankState.DONE, trace=b"a" * 25)
    host.write(1, RankState.DONE, trace=b"b" * 10)
    assert states(host.final()) == {0: RankState.DONE, 1: RankState.DONE}
    assert host.receiver.traces == {(7, 0): b"a" * 25, (7, 1): b"b" * 10}
    end_s = time.monotonic() + LIMIT_S
    while list(host.folder.rglob("*.trace.json.gz")):  # traces that were sent are deleted from the program's disk
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_a_rank_that_ends_within_its_window_is_lost_and_other_profiles_are_kept(make_host):
    host = make_host()
    live = {100: 0, 101: 1}
    host.windows.begin(SimpleNamespace(ranks_by_pid=lambda: dict(live)), None)
    host.windows.ask(asked())
    host.write(1, RankState.RECORDING)
    host.wait_for(lambda last: last.ranks)
    del live[101]
    host.wait_for(lambda last: states(last).get(1) is RankState.LOST)
    host.write(0, RankState.DONE, trace=b"a")
    assert host.final().ranks[1].words == "rank 1 ended before its trace was whole (recording)"


def test_the_end_of_the_program_ends_the_profile_and_sends_existing_traces(make_host):
    host = make_host()
    host.windows.begin(SimpleNamespace(ranks_by_pid=lambda: {100: 0, 101: 1}), None)
    host.windows.ask(asked())
    host.write(1, RankState.WAITING)
    host.wait_for(lambda last: last.ranks)
    host.write(0, RankState.DONE, trace=b"a")
    host.windows.begin(SimpleNamespace(ranks_by_pid=dict), None)
    host.windows.ended()
    assert host.receiver.last.is_final
    assert states(host.receiver.last) == {0: RankState.DONE, 1: RankState.LOST}
    assert host.receiver.traces[7, 0] == b"a"


def test_ranks_that_were_not_asked_are_not_waited_for(make_host):
    host = make_host()
    host.windows.begin(SimpleNamespace(ranks_by_pid=lambda: {100: 0, 101: 1}), None)
    host.windows.ask(asked(ranks=(1,)))
    host.write(1, RankState.REFUSED, words="it profiles itself")
    assert states(host.final()) == {1: RankState.REFUSED}
    host.windows.ask(asked(number=8, ranks=(5,)))
    assert (host.wait_for(lambda last: last.number == 8 and last.is_final).ranks, host.receiver.last.error) == ((), "")


def test_a_profile_of_unknown_ranks_is_final_when_no_more_answers_arrive(make_host):
    host = make_host()
    host.windows.ask(asked())
    host.write(0, RankState.DONE, trace=b"a")
    assert states(host.final()) == {0: RankState.DONE}


def test_ranks_that_never_answer_time_out_with_the_requirements_of_profiles(make_host, monkeypatch):
    monkeypatch.setattr(profile_windows, "_ANSWER_S", 0.0)
    host = make_host()
    host.windows.begin(SimpleNamespace(ranks_by_pid=lambda: {100: 0}), None)
    host.windows.ask(asked(give_up_at=time.time() + 0.3))
    assert "torch 2.5 or later" in host.final().ranks[0].words
    host.windows.begin(SimpleNamespace(ranks_by_pid=dict), None)
    host.windows.ask(asked(number=8, give_up_at=time.time() + 0.3))
    assert "no rank of algo-1 has answered" in host.wait_for(lambda last: last.number == 8 and last.is_final).error


def test_the_jobs_own_request_is_written_before_its_program_starts(make_host):
    host = make_host(window=Window(start_step=5, num_steps=2))
    host.windows.prepare(None)
    request = host.request(1)
    assert (request.start_step, request.num_steps, request.give_up_at) == (5, 2, 0)


def test_a_cancellation_is_written_for_the_ranks(make_host):
    host = make_host()
    request = asked()
    host.windows.ask(replace(request, number=6, is_cancelled=True))
    assert not (host.folder / "request-6.json").exists(), "nobody began it"
    host.windows.ask(request)
    host.windows.ask(replace(request, is_cancelled=True))
    assert host.request().is_cancelled


def test_a_service_that_was_unreachable_gets_all_profiles(make_host):
    host = make_host()
    host.receiver.refusals = [ServiceUnreachable("away"), ServiceUnreachable("away")]
    host.windows.ask(asked())
    host.write(0, RankState.DONE, trace=b"abc")
    assert states(host.final()) == {0: RankState.DONE}
    assert host.receiver.traces[7, 0] == b"abc"


def test_nothing_is_sent_after_the_end_of_the_attempt(make_host):
    host = make_host()
    host.receiver.refusals = [AttemptOver("over")]
    host.windows.ask(asked())
    host.write(0, RankState.DONE, trace=b"abc")
    host.windows.ended()
    assert host.receiver.profiles == []


def test_links_and_nonsense_of_the_program_are_not_followed(make_host, tmp_path):
    host = make_host()
    host.windows.ask(asked())
    secret = tmp_path / "secret"
    secret.write_bytes(b"of the machine")
    out = host.folder / "out/7"
    out.mkdir(parents=True)
    (out / "rank-1.json").write_text("[" * 10_000)
    (out / "rank-2.json").write_text(json.dumps(to_plain(RankProfile(rank=3, state=RankState.DONE))))
    os.mkfifo(out / "rank-4.json")
    os.symlink(secret, out / "rank-0.trace.json.gz")
    host.write(0, RankState.DONE)
    final = host.final()
    assert [(rank.rank, rank.state, rank.words) for rank in final.ranks] == [
        (0, RankState.FAILED, "its trace is not there")
    ]
    assert host.receiver.traces == {}


def test_only_ranks_that_were_started_on_the_host_are_heard(make_host):
    host = make_host()
    host.windows.begin(SimpleNamespace(ranks_by_pid=lambda: {100: 4, 101: 5}), None)
    for rank in (*range(8), 10**8):
        host.write(rank, RankState.DONE, trace=b"a")
    host.windows.ask(asked())
    assert states(host.final()) == {4: RankState.DONE, 5: RankState.DONE}
    assert host.receiver.traces.keys() == {(7, 4), (7, 5)}


def test_a_program_that_starts_its_ranks_itself_has_a_bounded_number_of_them(make_host, monkeypatch):
    monkeypatch.setattr(profile_windows, "MAX_UNKNOWN_RANKS", 3)
    host = make_host()
    host.write(0, RankState.RECORDING)
    for rank in range(1, 6):
        host.write(rank, RankState.DONE, trace=b"a")
    host.windows.ask(asked())
    host.wait_for(lambda last: len(last.ranks) == 3)
    for rank in (1, 2):  # others do not take the places of ranks that were heard
        (host.folder / f"out/7/rank-{rank}.json").unlink()
    host.wait_for(lambda last: len(last.ranks) == 1)
    host.write(0, RankState.DONE, trace=b"a")
    assert states(host.final()) == {0: RankState.DONE}
    assert host.receiver.traces.keys() == {(7, 0), (7, 1), (7, 2)}


def test_a_report_of_more_steps_than_a_window_has_is_not_read(make_host):
    host = make_host()
    host.write(0, RankState.DONE, trace=b"a", bounds_ns=tuple(range(5000)))
    host.write(1, RankState.DONE, trace=b"a", bounds_ns=tuple(range(1001)))
    host.windows.ask(asked())
    assert states(host.final()) == {1: RankState.DONE}


def test_a_trace_that_the_service_refuses_is_not_sent_again_and_the_profile_ends(make_host):
    host = make_host()
    host.receiver.refusals = [ServiceRefused("too many bytes")]
    host.write(0, RankState.RECORDING)
    host.write(1, RankState.DONE, trace=b"a")
    host.windows.begin(SimpleNamespace(ranks_by_pid=lambda: {100: 0, 101: 1}), None)
    host.windows.ask(asked())
    host.wait_for(lambda last: states(last).get(1) is RankState.FAILED)
    host.write(1, RankState.DONE, trace=b"a", words="anew")
    host.write(0, RankState.DONE, trace=b"b")
    final = host.final()
    assert states(final) == {0: RankState.DONE, 1: RankState.FAILED}
    assert final.ranks[1].words == "its trace was not taken: too many bytes"
    assert host.receiver.traces == {(7, 0): b"b"}


def test_a_trace_that_is_too_long_is_not_sent(make_host, monkeypatch):
    monkeypatch.setattr(profile_windows, "MAX_TRACE_BYTES", 5)
    host = make_host()
    host.windows.ask(asked())
    host.write(0, RankState.DONE, trace=b"abcdef")
    assert "ask for fewer steps" in host.final().ranks[0].words


def test_a_folder_that_the_program_removed_is_reported_as_an_error(make_host):
    host = make_host()
    host.folder.rmdir()
    host.windows.ask(asked())
    assert "the request could not be left for the ranks of algo-1" in host.final().error
