"""`clary describe`, section "time and money": parts, goodput, cost."""

from clary.cli.ledger_words import ledger_lines


def facts(**members):
    return {
        "until": "2026-01-01T00:02:00+00:00",
        "wall_s": 120.0,
        "hosts": [{"name": "algo-1", "seconds": {"queued": 20.0, "productive": 100.0}}],
        "seconds": {"queued": 20.0, "productive": 100.0},
        "goodput": 100 / 120,
        "num_attempts": 1,
        "num_reclaimed": 0,
        "num_restarted": 0,
        "bill": None,
        **members,
    }


def bill(**members):
    return {
        "training_s": 121,
        "billable_s": 36,
        "is_spot": True,
        "spot_fraction": 0.3,
        "savings_percent": (1 - 36 / 121) * 100,
        "on_demand_usd": 0.2571,
        "spot_usd": 0.0771,
        "source": "prices.json, us-east-1, 2026-08",
        "notes": [],
        **members,
    }


def test_one_host_has_a_line_a_part_and_its_goodput():
    assert ledger_lines(facts()) == [
        "PART        TIME    SHARE",
        "queued      20.0 s  16.7 %",
        "productive  1m 40s  83.3 %",
        "goodput 83.3 % of 1 host x 2m 00s; 1 attempt",
    ]


def test_several_hosts_have_a_column_each_and_early_ends_are_counted():
    hosts = [
        {"name": "algo-1", "seconds": {"productive": 120.0}},
        {"name": "algo-2", "seconds": {"productive": 90.0, "idle_waiting": 25.0, "lost_to_restart": 5.0}},
    ]
    total = {"productive": 210.0, "lost_to_restart": 5.0, "idle_waiting": 25.0}
    told = ledger_lines(
        facts(hosts=hosts, seconds=total, goodput=0.875, num_attempts=4, num_reclaimed=2, num_restarted=1)
    )
    assert told[0].split() == ["PART", "TIME", "SHARE", "algo-1", "algo-2"]
    assert told[1].split() == ["productive", "3m", "30s", "87.5", "%", "2m", "00s", "1m", "30s"]
    assert told[2].split() == ["lost", "to", "restart", "5.0", "s", "2.1", "%", "-", "5.0", "s"]
    assert told[3].startswith("waiting for others")
    assert told[4] == "goodput 87.5 % of 2 hosts x 2m 00s; 4 attempts, 2 reclaimed and 1 restarted"


def test_a_spot_job_shows_its_savings_and_the_on_demand_cost():
    assert ledger_lines(facts(bill=bill()))[-2:] == [
        "training 121 s a host, billable 36 s: 70.2 % saved, spot capacity costs 0.3 of the price on demand",
        "1 host would have cost $0.26 on demand, $0.08 on spot capacity (approximate: prices.json, us-east-1, 2026-08)",
    ]


def test_a_job_on_demand_saves_nothing_and_cents_are_not_rounded_away():
    told = ledger_lines(facts(bill=bill(is_spot=False, billable_s=121, on_demand_usd=0.00204, spot_usd=0.0006)))
    assert told[-2] == "training 121 s a host, billable 121 s"
    assert told[-1].startswith("1 host would have cost $0.0020 on demand, $0.0006 on spot capacity")


def test_an_instance_type_without_a_price_is_named_and_no_cost_is_shown():
    notes = ["no price is known for local: name one in a file of setting prices_file"]
    told = ledger_lines(facts(bill=bill(on_demand_usd=None, spot_usd=None, notes=notes)))
    assert told[-1] == notes[0]
    assert not any("$" in line for line in told)


def test_a_job_that_has_just_been_created_has_no_parts():
    empty = facts(wall_s=0.0, hosts=[{"name": "algo-1", "seconds": {}}], seconds={}, goodput=0.0, num_attempts=0)
    assert ledger_lines(empty) == ["goodput 0.0 % of 1 host x 0.0 s; 0 attempts"]


def test_hosts_that_do_not_fit_have_a_table_of_their_own():
    hosts = [{"name": f"algo-{number}", "seconds": {"productive": 60.0 + number}} for number in range(1, 6)]
    given = facts(hosts=hosts, seconds={"productive": 315.0}, wall_s=65.0)
    told = ledger_lines(given, width=40)
    assert [line.split() for line in told[:8]] == [
        ["PART", "TIME", "SHARE", "algo-1"],
        ["productive", "5m", "15s", "96.9", "%", "1m", "01s"],
        [],
        ["PART", "algo-2", "algo-3", "algo-4"],
        ["productive", "1m", "02s", "1m", "03s", "1m", "04s"],
        [],
        ["PART", "algo-5"],
        ["productive", "1m", "05s"],
    ]
    assert max(map(len, told[:8])) <= 40
    assert len(ledger_lines(given)) == 3, "where no width is given there is one table"
