"""Descriptions of a waiting job: the full form for its page, and a short form for a table row."""

import pytest

from clary.cli.queue_words import MOST_REASON, queue_words, waiting_brief
from clary.control.reconcile.launching import BEHIND_OTHERS

GROUNDS = "at the latest, if the jobs ahead use all of their MaxRuntimeInSeconds"
OTHERS = "First come, first served: 25 older jobs wait for hosts (sweep-004, sweep-005, sweep-006 and 22 more)."
HOLDERS = "Needs 2 hosts; 1 of 4 hosts is free: a-job-of-a-long-name-1 holds 1, a-job-of-a-long-name-2 holds 2."


def waiting(reason, *, place=3, num_waiting=26, start_in_s=720.0, basis="MaxRuntimeInSeconds"):
    queue = {
        "place": place,
        "num_waiting": num_waiting,
        "start_in_s": start_in_s,
        "basis": basis,
        "estimate": GROUNDS,
    }
    return {"state": "Queued", "queue": queue, "pending_reason": reason}


@pytest.mark.parametrize(
    ("facts", "brief"),
    [
        (waiting(OTHERS), "place 3 of 26, within 12m 00s"),
        (waiting(BEHIND_OTHERS), "place 3 of 26, within 12m 00s"),
        (waiting(OTHERS, basis="past jobs"), "place 3 of 26, in about 12m 00s"),
        (waiting(OTHERS, start_in_s=None), "place 3 of 26, start unknown"),
        (waiting(OTHERS, start_in_s=0.2), "place 3 of 26, starts at once"),
        (waiting(OTHERS, place=None), f"passed over for now; {OTHERS.partition(' (')[0]}"),
        (waiting("no node is free.", place=None, start_in_s=None, basis="scheduler"), "no node is free"),
        (
            waiting("Needs 4 hosts; 2 of 4 are free.", place=1),
            "place 1 of 26, within 12m 00s; Needs 4 hosts; 2 of 4 are free",
        ),
        (waiting(HOLDERS, place=1), "place 1 of 26, within 12m 00s; Needs 2 hosts; 1 of 4 hosts is free"),
        ({"state": "Queued", "queue": None, "pending_reason": ""}, ""),
        ({**waiting(OTHERS), "state": "Running"}, ""),
    ],
)
def test_a_row_shows_the_reason_only_if_the_place_in_the_queue_is_not_the_reason(facts, brief):
    assert waiting_brief(facts) == brief


@pytest.mark.parametrize(
    ("basis", "words"),
    [("unknown", "passed over for now"), ("scheduler", "waits for the scheduler")],
)
def test_a_job_without_a_place_is_told_why_its_start_is_unknown(basis, words):
    facts = waiting("", place=None, start_in_s=None, basis=basis)
    assert queue_words(facts["queue"]) == f"{words}, start unknown: {GROUNDS}"


@pytest.mark.parametrize(
    ("reason", "brief"),
    [
        ("waits for 2 boxes: box1 runs job-7, box2 is drained", "2 boxes: box1 runs job-7, box2 is drained"),
        (
            "boxes: 3 nodes are needed for ml.m5.large; there are 2; add machines with: clary hosts add USER@HOST",
            "boxes: 3 nodes are needed for ml.m5.large; there are 2; a...",
        ),
        ("Slurm job 5 waits: Resources (0 of 3 nodes of partition spot)", "Slurm job 5 waits: Resources"),
        (f"waits for 9 boxes: {'box1 runs job-7, ' * 9}", "9 boxes"),
    ],
)
def test_a_reason_of_a_scheduler_reads_well_below_the_heading_waits_for(reason, brief):
    assert waiting_brief(waiting(reason, place=None, start_in_s=None, basis="scheduler")) == brief


def test_rows_cut_long_reasons_and_the_jobs_page_explains_the_estimate():
    facts = waiting("no box has room for it and so on " * 20, place=1)
    assert len(waiting_brief(facts)) <= len("place 1 of 26, within 12m 00s; ") + MOST_REASON
    assert waiting_brief(facts).endswith("...")
    assert GROUNDS in queue_words(facts["queue"])
