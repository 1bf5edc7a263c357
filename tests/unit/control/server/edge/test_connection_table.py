"""Clients that keep a slot in the table of connections, and clients that are evicted."""

from clary.control.server.edge.connection_table import ConnectionTable, counted_address

OWN, JOB, OTHER = "127.0.0.1", "127.80.0.1", "10.0.0.1"


def filled(table, peer, count, *, is_settled=False):
    keys = [(peer, number) for number in range(count)]
    for key in keys:
        assert table.arrive(key, peer).is_accepted
        if is_settled:
            table.settle(key)
    return keys


def test_a_slow_stranger_is_evicted_for_the_next_client():
    table = ConnectionTable(16)
    slow = filled(table, OWN, 8)
    arrival = table.arrive("new", OWN)
    assert (arrival.is_accepted, arrival.evicted) == (True, slow[0])
    assert len(table) == 8


def test_a_known_client_that_is_being_served_is_not_evicted():
    table = ConnectionTable(16)
    known = filled(table, OWN, 8, is_settled=True)
    refused = table.arrive("new", OWN)
    assert (refused.is_accepted, refused.evicted) == (False, None)
    assert "127.0.0.1 has 8 connections" in refused.reason
    table.unsettle(known[3])
    assert table.arrive("new", OWN).evicted == known[3]


def test_jobs_and_strangers_leave_the_slots_of_this_machine_free():
    table = ConnectionTable(16)
    for number in range(20):
        table.settle("held") if table.arrive("held", f"127.80.0.{number}").is_accepted else None
        table.arrive(number, f"10.0.0.{number}")
        table.settle(number)
    filled(table, OWN, 8, is_settled=True)


def test_one_job_has_at_most_a_quarter_of_the_slots():
    table = ConnectionTable(16)
    filled(table, JOB, 4, is_settled=True)
    assert not table.arrive("more", JOB).is_accepted
    assert table.arrive("other", OTHER).is_accepted


def test_of_many_strangers_the_one_with_most_connections_is_evicted():
    table = ConnectionTable(16)
    greedy = filled(table, OTHER, 4)
    for number in range(4):
        assert table.arrive(number, f"10.0.1.{number}").evicted is None
    assert table.arrive("new", JOB).evicted == greedy[0]


def test_a_closed_connection_leaves_no_entry():
    table = ConnectionTable(16)
    for key in filled(table, JOB, 4):
        table.leave(key)
        table.leave(key)
        table.settle(key)
        table.unsettle(key)
    assert len(table) == 0
    filled(table, JOB, 4)


def test_a_client_on_this_machine_is_the_owner_s_whichever_local_address_it_uses():
    assert counted_address(("192.0.2.2", 4000), ("192.0.2.2", 8080)) == OWN
    assert counted_address(("2001:db8::1", 4000, 0, 0), ("2001:db8::1", 8080, 0, 0)) == OWN
    assert counted_address(("127.0.0.1", 4000), ("127.0.0.1", 8080)) == OWN
    assert counted_address((JOB, 4000), ("192.0.2.2", 8080)) == JOB
    assert counted_address((f"::ffff:{JOB}", 4000, 0, 0), ("::ffff:127.0.0.1", 8080, 0, 0)) == JOB
    assert counted_address(("192.0.2.7", 4000), ("192.0.2.2", 8080)) == "192.0.2.7"
    assert counted_address("", None) == ""
