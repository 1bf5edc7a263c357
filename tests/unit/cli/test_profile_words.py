"""Output of `clary profile`: shares of each rank, late ranks, the longest operations, and ranks without a trace."""

from clary.cli.profile_words import profile_text, states_text


def rank(number, **changes):
    return {
        "rank": number,
        "host": f"algo-{number + 1}",
        "state": "done",
        "words": "",
        "first_step": 40,
        "num_steps": 5,
        "step_ms": 21.25,
        "window_ms": 106.25,
        "compute_share": 0.5,
        "communication_share": 0.4,
        "exposed_communication_share": 0.3,
        "data_wait_share": 0.1,
        "rest_share": 0.1,
        "num_collectives": 10,
        "top": [{"name": "aten::mm", "count": 5, "self_ms": 20.0, "share": 0.2}],
        **changes,
    }


SKEW = {
    "num_collectives": 10,
    "median_ms": 2.0,
    "greatest_ms": 9.0,
    "last": {"0": 1, "1": 9},
    "mean_behind_ms": {"0": 0.1, "1": 3.0},
    "greatest": [{"step": 41, "name": "c10d::allreduce_", "index": 0, "skew_ms": 9.0, "last": 1}],
}


def page(*ranks, skew=None, errors=(), ended=""):
    return {
        "job": "demo",
        "attempt": 1,
        "number": 7,
        "asked_at": "2026-01-01T00:00:00+00:00",
        "reason": "asked for",
        "folder": "/home/profiles/demo/7",
        "ended": ended,
        "summary": {
            "ranks": list(ranks),
            "skew": skew or {},
            "errors": list(errors),
            "clocks": {"method": "one clock", "spread_us": None},
            "merged": "merged.trace.json.gz",
        },
    }


def test_ranks_collectives_and_operations_are_shown():
    text = profile_text(page(rank(0), rank(1), skew=SKEW))
    lines = text.splitlines()
    assert lines[2].split() == [
        *("RANK", "HOST", "STEPS", "STEP", "COMPUTE", "COMMUNICATION", "EXPOSED", "DATA", "WAIT", "REST", "COLLECTIVES")
    ]
    assert lines[3].split()[:5] == ["0", "algo-1", "40-44", "21.2", "ms"]
    assert "30.0 %" in lines[3]
    assert "rank 1 comes last 9 times" in text
    assert "c10d::allreduce_  9.0 ms  rank 1" in text
    assert "aten::mm   20.00 ms" in text
    assert "/home/profiles/demo/7/merged.trace.json.gz" in text
    assert "clocks: one clock" in text


def test_a_service_elsewhere_is_named_with_the_folder_of_the_traces():
    text = profile_text(page(rank(0)), machine="gpu-room")
    assert any(
        line.startswith("traces: ") and line.endswith("(on the machine of service gpu-room)")
        for line in text.splitlines()
    )


def test_ranks_without_a_trace_are_named_with_the_reason_and_the_jobs_end():
    lost = {"rank": 1, "host": "algo-2", "state": "lost", "words": "rank 1 ended before its trace was whole"}
    text = profile_text(page(rank(0), lost, errors=["algo-3 has not answered"], ended="demo has ended (Failed: x)"))
    assert "rank 1 (algo-2) has no trace: rank 1 ended before its trace was whole" in text
    assert "algo-3 has not answered" in text
    assert text.index("demo has ended") < text.index("clocks:")


def test_a_profile_that_nobody_has_answered_gives_the_reason():
    assert "nothing was recorded: no rank has answered" in profile_text({**page(), "is_over": True})
    ended = profile_text({**page(ended="demo has ended (Completed)"), "is_over": True})
    assert ended.splitlines()[2:] == ["nothing was recorded: demo has ended (Completed)"]
    known = profile_text({**page(errors=["rank 7 has not answered"], ended="demo has ended"), "is_over": True})
    assert known.splitlines()[2:] == ["rank 7 has not answered"]
    assert "nothing was recorded" not in profile_text({**page(rank(0)), "is_over": True})


def test_a_window_by_time_has_no_steps():
    text = profile_text(page(rank(0, num_steps=0, step_ms=None, window_ms=2000.0)))
    assert "2.0 s  -" in text


def test_hostile_names_harm_no_terminal():
    top = [{"name": "\033[2J" + "x" * 300, "count": 1, "self_ms": 1.0, "share": 0.1}]
    text = profile_text(page(rank(0, top=top, words="\033[31m"), errors=["\033]0;owned\007"]))
    assert "\033" not in text
    assert max(map(len, text.splitlines())) < 160


def test_progress_counts_ranks_by_state():
    assert states_text([]) == "asked for"
    states = [{"state": "recording", "step": 41}, {"state": "recording", "step": 40}, {"state": "waiting", "step": 0}]
    assert states_text(states) == "2 recording, 1 waiting (step 41)"


def test_an_unfinished_profile_shows_its_progress():
    states = [{"state": "recording", "step": 41}, {"state": "waiting", "step": 0}]
    taken = {**page(), "summary": None, "is_over": False, "states": states}
    assert profile_text(taken).splitlines()[2] == "it is being taken: 1 recording, 1 waiting (step 41)"
    assert "being taken" not in profile_text({**page(rank(0)), "is_over": True})
