"""Output of `clary dump`: suspects first, then ranks by location, then other processes; names are escaped."""

from clary.cli.dump_words import dump_text


def frame(function, file="train.py", line=1):
    return {"function": function, "file": file, "line": line}


def process(rank, **changes):
    return {
        "pid": 10,
        "rank": rank,
        "command": "python train.py",
        "state": "S",
        "wait_channel": "",
        "threads": [{"name": "MainThread", "thread": 1, "frames": [frame("deep", line=5)]}],
        "error": "",
        **changes,
    }


def group(*members, frames=None, **changes):
    return {
        "members": [{"host": host, "rank": rank, "pid": 10} for host, rank in members],
        "doing": "waits for other ranks",
        "operation": "all_reduce",
        "frames": frames or [frame("all_reduce", "torch/distributed/distributed_c10d.py", 7), frame("<module>")],
        "is_odd": False,
        **changes,
    }


def suspect(who, why, weight="suspect"):
    return {"who": who, "why": why, "weight": weight}


def page(*groups, suspicions=(), processes=(), **changes):
    return {
        "job": "demo",
        "attempt": 1,
        "hosts": ["algo-1", "algo-2"],
        "asked_at": "2026-01-01T00:00:00+00:00",
        "reason": "asked for",
        "autopsy": {"groups": list(groups), "suspicions": list(suspicions)},
        "dumps": {"algo-1": {"processes": list(processes)}},
        **changes,
    }


def lines_of(*arguments, threads=False, colours=False, **changes):
    return dump_text(page(*arguments, **changes), threads=threads, colours=colours).splitlines()


def test_ranks_are_ordered_by_location_after_suspects():
    odd = group(("algo-2", 2), is_odd=True, doing="is stopped by a signal", operation="")
    lines = lines_of(
        group(("algo-1", 0), ("algo-1", 1)), odd, suspicions=[suspect("rank 2 on algo-2", "it is stopped")]
    )
    assert lines[0].startswith("demo  attempt 1, 2 hosts, ")
    assert lines[2] == "SUSPECT  rank 2 on algo-2: it is stopped"
    assert lines[4] == "2 ranks, rank 0, rank 1 on algo-1: waits for other ranks in all_reduce"
    assert lines[5] == "    all_reduce  torch/distributed/distributed_c10d.py:7"
    assert "1 rank, rank 2 on algo-2: is stopped by a signal   << stands out" in lines


def test_a_job_with_progress_has_no_suspects():
    assert lines_of(group(("algo-1", 0)))[-1] == "nothing suspicious was found"
    assert lines_of()[-1] == "no rank could be looked at"


def test_long_stacks_are_cut_in_the_middle_and_shown_whole_with_threads():
    many = [frame(f"f{number}") for number in range(40)]
    lines = lines_of(group(("algo-1", 0), frames=many))
    assert "    ... 28 more" in lines
    assert "    f0   train.py:1" in lines
    assert "    f39  train.py:1" in lines
    whole = lines_of(group(("algo-1", 0), frames=many), threads=True, processes=[process(0)])
    assert "    f20  train.py:1" in whole
    assert "algo-1, rank 0, thread MainThread" in whole
    assert "    deep  train.py:5" in whole


def test_processes_that_are_no_ranks_and_why_there_are_no_stacks_come_last():
    helper = process(None, pid=77, wait_channel="pipe_read", error="py-spy: Permission denied")
    lines = lines_of(group(("algo-1", 0)), processes=[process(0), helper])
    assert "algo-1  77       S      pipe_read  python train.py" in lines
    assert lines[-1] == "without stacks: py-spy: Permission denied"


def test_hostile_names_cannot_steer_a_terminal():
    evil = "\x1b[2Jgone"
    text = dump_text(
        page(
            group(("algo-1", 0), frames=[frame(evil, evil)], operation=evil),
            suspicions=[suspect(evil, evil)],
            reason=evil,
            processes=[process(None, command=evil, error=evil, wait_channel=evil, threads=[])],
        ),
        threads=True,
        colours=False,
    )
    assert "\x1b" not in text


def test_colours_are_for_terminals_alone():
    suspicions = [suspect("a", "b")]
    assert "\x1b[31;1mSUSPECT" in dump_text(page(suspicions=suspicions), threads=False, colours=True)


def called(rank, number, state="waited for", pid=10, **changes):
    call = {"number": number, "operation": "all_reduce", "count": 4, "dtype": "float32", "peer": -1, "age_s": 12.04}
    return {"host": "algo-1", "rank": rank, "pid": pid, "call": {**call, "state": state}, **_PLAIN, **changes}


_PLAIN = {"is_behind": False, "differs": False}


def calls_of(*members, name="0", kind="gloo"):
    return {"name": name, "kind": kind, "members": list(members)}


def with_calls(*groups, threads=False):
    shown = page(group(("algo-1", 0)))
    shown["autopsy"]["collectives"] = list(groups)
    return dump_text(shown, threads=threads, colours=False).splitlines()


def test_the_last_collectives_are_listed_by_operation():
    lines = with_calls(
        calls_of(*(called(rank, 41) for rank in (0, 1, 2)), called(3, 40, "finished", is_behind=True)),
        calls_of({**called(0, 1, pid=0), "call": None}, called(1, 7, differs=True), name="f" * 40, kind="nccl"),
        calls_of({**called(0, 1), "call": None}, name="unused"),
    )
    start = next(index for index, line in enumerate(lines) if line.startswith("GROUP"))
    assert [line.split() for line in lines[start : start + 5]] == [
        ["GROUP", "RANKS", "LAST", "COLLECTIVE", "STATE", "SINCE"],
        ["0", "(gloo)", "0-2", "all_reduce", "#41,", "4", "float32", "waited", "for", "12.0", "s"],
        ["3", "all_reduce", "#40,", "4", "float32", "finished", "12.0", "s", "<<", "behind"],
        ["f" * 12, "(nccl)", "0", "(its", "process", "has", "ended)", "none", "yet", "-", "-"],
        ["1", "all_reduce", "#7,", "4", "float32", "waited", "for", "12.0", "s", "<<", "another"],
    ]
    assert not any("unused" in line for line in lines)


def test_many_groups_are_cut_and_shown_whole_with_the_option_threads():
    groups = [calls_of(called(0, 1), name=f"group-{number}") for number in range(12)]
    assert "4 more" in with_calls(*groups)
    assert any("group-11" in line for line in with_calls(*groups, threads=True))


def test_hostile_names_of_groups_cannot_steer_a_terminal():
    evil = "\x1b[2J"
    call = {**called(None, 1)["call"], "operation": evil, "dtype": evil}
    text = "\n".join(with_calls(calls_of(called(None, 1, call=call), name=evil, kind=evil)))
    assert "\x1b" not in text
    assert "process 10" in text


def test_awaited_ranks_are_distinguished_from_suspected_ranks():
    lines = lines_of(suspicions=[suspect("rank 0", "it computes", "waited for")])
    assert lines[2] == "WAITED FOR  rank 0: it computes"
