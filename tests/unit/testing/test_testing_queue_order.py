"""The judge of a queue of many jobs: it finds every overtaking, and reports no overtaking if the order is not known."""

from datetime import UTC, datetime

from clary.testing.many_jobs.client import admission_of
from clary.testing.many_jobs.queue_order import longest_pause_s, overtakings
from clary.testing.many_jobs.records import JobRecord, Life


def job(name, created_at, admitted=None):
    first, last = admitted if isinstance(admitted, tuple) else (admitted, admitted)
    return JobRecord(
        name=name,
        client=0,
        life=Life.FINISHES,
        num_hosts=1,
        submitted_at=created_at,
        created_at=created_at,
        admitted_from=first,
        admitted_until=last,
        first_line_at=None,
        status="Completed",
        ended_at=100.0,
    )


def at(second):
    return datetime.fromtimestamp(second, UTC)


def test_jobs_in_the_order_of_their_creation_give_no_overtaking():
    assert overtakings([job("b", 2.0, 6.0), job("a", 1.0, 5.0), job("c", 3.0, 6.0)]) == []


def test_a_younger_job_that_gets_hosts_before_an_older_one_is_named_with_it():
    found = overtakings([job("a", 1.0, 5.0), job("b", 2.0, 4.5), job("c", 3.0, 7.0)])
    assert found == ["b, created 1.000 s after a, had its hosts 0.500 s before it"]


def test_an_overtaken_job_is_found_although_others_kept_their_order():
    assert len(overtakings([job("a", 1.0, 9.0), job("b", 2.0, 9.5), job("c", 3.0, 4.0), job("d", 4.0, 4.5)])) == 2


def test_jobs_without_hosts_and_jobs_of_one_creation_time_are_never_overtaken():
    assert overtakings([job("stopped", 1.0), job("a", 2.0, 5.0), job("b", 2.0, 4.0)]) == []


def test_admissions_known_to_a_second_are_no_overtaking_if_the_order_may_be_right():
    assert overtakings([job("a", 1.0, (5.0, 6.0)), job("b", 2.0, (5.5, 5.5))]) == []
    assert len(overtakings([job("a", 1.0, (5.0, 6.0)), job("b", 2.0, (4.0, 4.9))])) == 1


def test_the_longest_pause_counts_from_the_moment_at_which_a_job_waited():
    assert longest_pause_s([job("a", 1.0, 1.0), job("b", 50.0, 51.0), job("c", 50.5, 53.5)]) == 2.5
    assert longest_pause_s([]) == 0.0


def test_a_job_that_had_to_wait_was_admitted_when_it_left_pending():
    rows = [("Starting", 1), ("Pending", 2), ("Starting", 7), ("Downloading", 8)]
    facts = {
        "CreationTime": at(1),
        "SecondaryStatusTransitions": [{"Status": status, "StartTime": at(second)} for status, second in rows],
    }
    assert admission_of(facts, ["job/algo-1-7"]) == (7.0, 7.0)


def test_a_job_that_did_not_wait_was_admitted_between_its_stream_and_its_download():
    facts = {
        "CreationTime": at(7.25),
        "SecondaryStatusTransitions": [
            {"Status": "Starting", "StartTime": at(7.25)},
            {"Status": "Downloading", "StartTime": at(8.5)},
        ],
    }
    assert admission_of(facts, ["job/algo-1-7"]) == (7.25, 8.5)
    assert admission_of(facts, []) == (None, None)
