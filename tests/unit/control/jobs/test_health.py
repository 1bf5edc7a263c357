"""Sick hosts and links, and the consequences before the program starts."""

import pytest
from job_script import PLAN, Script

from clary.contract.agent_protocol import HostPhase, OrderKind
from clary.contract.health import Check, FindingState, HealthFinding
from clary.control.jobs import events, health
from clary.control.jobs.training_job import RestartRule

HOSTS = ("algo-1", "algo-2", "algo-3", "algo-4")
OK, WARN, BAD = FindingState.OK, FindingState.WARN, FindingState.BAD


def finding(host, peer=None, *, check=Check.LINK, state=OK, words="w", cause="", rate=None):
    return HealthFinding(check=check, state=state, host=host, peer=peer, words=words, cause=cause, rate_mbit_s=rate)


def well(hosts=HOSTS):
    return {
        host: [finding(host, check=Check.DISK), *(finding(host, peer) for peer in hosts if peer != host)]
        for host in hosts
    }


def with_bad(findings, *bad):
    for host, peer, check in bad:
        kept = [item for item in findings[host] if peer is None or item.peer != peer]
        findings[host] = [*kept, finding(host, peer, check=check, state=BAD, words=f"{check} words", cause="a cause")]
    return findings


def names(sicknesses):
    return [(sick.host, sick.peer) for sick in sicknesses]


def test_no_host_is_sick_with_only_good_findings_and_warnings():
    findings = well()
    findings["algo-1"].append(finding("algo-1", check=Check.MEMORY, state=WARN))
    assert health.diagnose(findings) == ()
    assert health.diagnose({}) == ()


def test_a_host_with_a_bad_check_of_its_own_is_sick():
    (sick,) = health.diagnose(with_bad(well(), ("algo-2", None, Check.DISK)))
    assert (sick.host, sick.peer, sick.reason) == ("algo-2", None, "disk: disk words (a cause)")


def test_one_bad_link_is_reported_once_as_a_sick_link():
    findings = with_bad(well(), ("algo-3", "algo-1", Check.MTU), ("algo-1", "algo-3", Check.MTU))
    (sick,) = health.diagnose(findings)
    assert (sick.host, sick.peer) == ("algo-1", "algo-3")
    assert sick.reason == "algo-1 to algo-3, mtu: mtu words (a cause)"


def test_the_second_end_of_a_link_is_reported_if_it_has_another_cause():
    findings = with_bad(well(), ("algo-1", "algo-3", Check.REACH))
    findings["algo-3"].append(finding("algo-3", "algo-1", check=Check.REACH, state=BAD, words="x", cause="one way"))
    (sick,) = health.diagnose(findings)
    assert sick.reason.endswith("; algo-3 to algo-1, reach: x (one way)")


def test_a_host_most_of_whose_links_are_bad_is_sick_itself():
    findings = with_bad(well(), *((host, "algo-4", Check.REACH) for host in HOSTS[:3]))
    (sick,) = health.diagnose(findings)
    assert (sick.host, sick.peer) == ("algo-4", None)
    assert sick.reason.startswith("3 of its 3 links are bad; algo-1 to algo-4, reach")


def test_hosts_whose_only_bad_links_lead_to_sick_hosts_are_well():
    bad = [(host, peer, Check.REACH) for host in HOSTS[:2] for peer in HOSTS[2:]]
    findings = with_bad(well(), *bad, ("algo-3", "algo-4", Check.REACH))
    assert names(health.diagnose(findings)) == [("algo-3", None), ("algo-4", None)]


def test_of_two_hosts_the_link_is_sick_since_the_culprit_is_unknown():
    assert names(health.diagnose(with_bad(well(HOSTS[:2]), ("algo-2", "algo-1", Check.LOSS)))) == [("algo-1", "algo-2")]


def test_a_bad_route_makes_its_host_sick_and_explains_bad_links_of_peers():
    findings = with_bad(
        well(), ("algo-1", "algo-2", Check.ROUTE), ("algo-2", "algo-1", Check.REACH), ("algo-3", "algo-1", Check.REACH)
    )
    (sick,) = health.diagnose(findings)
    assert (sick.host, sick.peer) == ("algo-1", None)
    assert "route" in sick.reason


def test_a_link_that_is_much_slower_in_one_direction_gets_a_warning():
    findings = {
        "algo-1": [finding("algo-1", "algo-2", rate=4000.0)],
        "algo-2": [finding("algo-2", "algo-1", rate=90.0)],
    }
    changed = health.with_lopsided(findings)
    (slow,) = changed["algo-2"]
    assert (slow.check, slow.state) == (Check.RATE, WARN)
    assert slow.words == "90 Mbit/s, but 4000 Mbit/s from algo-1 to algo-2"
    assert changed["algo-1"] == tuple(findings["algo-1"])


@pytest.mark.parametrize("rates", [(4000.0, 1000.0), (9000.0, 600.0), (90.0, 80.0), (None, 80.0)])
def test_rates_that_short_bursts_cannot_distinguish_get_no_warning(rates):
    findings = {
        "algo-1": (finding("algo-1", "algo-2", rate=rates[0]),),
        "algo-2": (finding("algo-2", "algo-1", rate=rates[1]),),
    }
    assert health.with_lopsided(findings) == findings


def script_of(action, **changes):
    script = Script(**changes)
    plan = {**PLAN, "health_action": action}
    streams = tuple(f"job/{host}-1" for host in script.hosts)
    return script.send(events.HostsAsked(plan=plan, host_names=tuple(script.hosts), log_streams=streams))


SICK = (finding("algo-1", "algo-2", check=Check.MTU, state=BAD, words="packets vanish", cause="a hop"),)
WELL = (finding("algo-2", "algo-1"),)


def test_a_sick_link_ends_the_attempt_before_the_program_and_restarts_the_job():
    script = script_of("replace", restart_rule=RestartRule(max_restarts=1)).all(HostPhase.PREPARING)
    script.report("algo-1", HostPhase.PREPARING, health=SICK)
    assert script.job.failure is None, "the other end has not been heard"
    script.report("algo-2", HostPhase.PREPARED, health=WELL)
    assert script.job.failure.host == "algo-1"
    assert {script.order(host) for host in script.hosts} == {OrderKind.STOP}
    script.report("algo-2", HostPhase.EXITED, health=WELL).report("algo-1", HostPhase.EXITED, health=SICK)
    assert "Restarting" in script.secondaries()
    reason = script.job.ending.reason
    assert "algo-1: the link to algo-2 is sick: algo-1 to algo-2, mtu: packets vanish (a hop)" in reason
    assert health.why_replaced(script.job).startswith("algo-1 was found sick"), "its hosts serve no other attempt"


def test_without_restarts_the_job_fails_with_the_finding_as_its_reason():
    script = script_of("replace").all(HostPhase.PREPARING).report("algo-2", HostPhase.PREPARING, health=WELL)
    script.report("algo-1", HostPhase.PREPARED, health=SICK).all(HostPhase.EXITED)
    assert script.job.failure.fault == "infrastructure"
    assert script.job.failure.verdict == "network"
    assert script.job.status.value == "Failed"


def test_a_sick_link_is_only_reported_with_the_action_warn():
    script = script_of("warn").all(HostPhase.PREPARING).report("algo-2", HostPhase.PREPARED, health=WELL)
    script.report("algo-1", HostPhase.PREPARED, health=SICK)
    assert script.job.failure is None
    assert {script.order(host) for host in script.hosts} == {OrderKind.RUN}
    assert health.why_replaced(script.job) == ""


def test_findings_while_the_program_runs_end_nothing():
    script = script_of("replace").all(HostPhase.PREPARING)
    script.report("algo-1", HostPhase.PREPARED, health=(finding("algo-1", "algo-2"),))
    script.report("algo-2", HostPhase.PREPARED, health=WELL)
    script.all(HostPhase.RUNNING, health=WELL).report("algo-1", HostPhase.RUNNING, health=SICK)
    assert script.job.failure is None
    assert {script.order(host) for host in script.hosts} == {OrderKind.RUN}


def clocks(**offsets_s):
    """Return findings about clocks, by host; each says that its offset from the service's clock is fine."""
    return {
        host.replace("_", "-"): [
            HealthFinding(
                check=Check.CLOCK, state=OK, host=host.replace("_", "-"), words="as told", clock_offset_s=offset_s
            )
        ]
        for host, offset_s in offsets_s.items()
    }


@pytest.mark.parametrize(
    ("offsets_s", "told"),
    [
        ({"algo_1": 0.0}, None),
        ({"algo_1": 0.9, "algo_2": -1.0, "algo_3": 0.0}, None),
        ({"algo_1": 1.9, "algo_2": -1.0, "algo_3": 0.0}, ("algo-1", "as told, 3 s ahead of algo-2's, expected less")),
        ({"algo_1": 0.8, "algo_2": -1.9, "algo_3": 0.0}, ("algo-2", "as told, 3 s behind algo-1's, expected less")),
        ({"algo_1": None, "algo_2": 1.9}, None),
    ],
)
def test_of_two_differing_clocks_the_one_further_off_gets_a_warning(offsets_s, told):
    found = health.with_skew(clocks(**offsets_s))
    warned = [(host, item.words) for host, items in found.items() for item in items if item.state is WARN]
    assert len(warned) == (told is not None)
    if told is not None:
        assert warned[0][0] == told[0]
        assert warned[0][1].startswith(told[1])
    assert health.diagnose(found) == ()


def test_a_clock_that_is_far_off_is_reported_once():
    findings = clocks(algo_1=90.0, algo_2=0.0)
    findings["algo-1"] = [
        HealthFinding(check=Check.CLOCK, state=BAD, host="algo-1", words="90 s ahead", clock_offset_s=90.0)
    ]
    assert health.with_skew(findings)["algo-1"][0] == findings["algo-1"][0]
