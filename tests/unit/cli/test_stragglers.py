"""Slow ranks in the output of `clary stragglers` and `clary describe`."""

from clary.cli.stragglers import stragglers_text, verdict_lines

RANK = {
    "host": "algo-1",
    "rank": 0,
    "step_s": 0.5,
    "data_wait_s": 0.01,
    "forward_s": 0.1,
    "backward_s": 0.2,
    "communication_s": 0.15,
    "optimizer_s": 0.03,
    "other_s": 0.01,
}
VERDICT = {
    "kind": "compute",
    "host": "algo-2",
    "ranks": [1],
    "text": "algo-2 (rank 1) is slow: compute",
    "evidence": ["rank 1 works 0.490 s a step, the others 0.350 s"],
    "confidence": "high",
}
PAGE = {"job": "demo", "status": "InProgress", "since_ms": 0, "until_ms": 120_000, "ranks": [RANK], "verdict": VERDICT}


def test_the_table_shows_each_rank_above_the_verdict_and_its_evidence():
    assert stragglers_text(PAGE).splitlines() == [
        "demo  InProgress, seconds of a step, medians of 2m 00s",
        "",
        "HOST    RANK  STEP   DATA   FORWARD  BACKWARD  COMMUNICATION  OPTIMIZER  OTHER",
        "algo-1  0     0.500  0.010  0.100    0.200     0.150          0.030      0.010",
        "",
        "algo-2 (rank 1) is slow: compute  (high confidence)",
        "  - rank 1 works 0.490 s a step, the others 0.350 s",
    ]


def test_a_job_without_steps_has_no_table():
    verdict = {**VERDICT, "text": "too few steps are known", "evidence": [], "confidence": ""}
    lines = stragglers_text({**PAGE, "ranks": [], "verdict": verdict}).splitlines()
    assert lines == ["demo  InProgress", "", "too few steps are known"]
    assert verdict_lines(verdict) == ["too few steps are known"]


def test_short_steps_are_shown_in_milliseconds():
    rank = {name: value / 100 if name.endswith("_s") else value for name, value in RANK.items()}
    lines = stragglers_text({**PAGE, "ranks": [rank]}).splitlines()
    assert lines[0] == "demo  InProgress, milliseconds of a step, medians of 2m 00s"
    assert lines[3].split() == ["algo-1", "0", "5.0", "0.1", "1.0", "2.0", "1.5", "0.3", "0.1"]
