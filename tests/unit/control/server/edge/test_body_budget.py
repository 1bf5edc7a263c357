"""Bytes of request bodies: of one client, of all clients, and the share that is free."""

from clary.control.server.edge.body_budget import FREE_BYTES, BodyBudget, BodyTicket

MIB = 1024 * 1024


def test_ordinary_requests_pass_while_others_use_up_the_budget():
    budget = BodyBudget(2 * MIB)
    greedy = [BodyTicket(budget, name) for name in ("a", "b")]
    assert [ticket.grow(MIB + FREE_BYTES) for ticket in greedy] == ["", ""]
    assert BodyTicket(budget, "c").grow(FREE_BYTES) == ""
    assert "body_budget_bytes" in BodyTicket(budget, "c").grow(FREE_BYTES + 1)


def test_one_client_may_use_half_of_the_budget():
    budget = BodyBudget(2 * MIB)
    ticket = BodyTicket(budget, "a")
    assert ticket.grow(FREE_BYTES + MIB) == ""
    assert "of this client" in ticket.grow(1)
    assert BodyTicket(budget, "b").grow(FREE_BYTES + MIB) == ""


def test_bytes_are_returned_when_the_request_has_ended():
    budget = BodyBudget(MIB)
    for _ in range(3):
        with BodyTicket(budget, "a") as ticket:
            for _ in range(6):
                assert ticket.grow(FREE_BYTES) == ""
            assert budget.num_held_bytes == 5 * FREE_BYTES
        assert budget.num_held_bytes == 0
