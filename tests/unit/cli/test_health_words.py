"""The two matrices of `clary doctor JOB`, and the lines below them."""

import json

from clary.cli.health_words import health_text, is_bad
from clary.cli.main import main


def item(host, check, state, peer=None, words="w", cause=""):
    return {"host": host, "peer": peer, "check": check, "state": state, "words": words, "cause": cause}


def page(**changes):
    own = ("disk", "memory", "clock", "names", "port", "interface", "collective")
    hosts = {
        host: [
            *(item(host, check, "ok") for check in own),
            item(host, "gpu", "skipped", words="the host has no GPU"),
            item(host, "link", "ok", peer),
        ]
        for host, peer in (("algo-1", "algo-2"), ("algo-2", "algo-1"))
    }
    return {
        "job": "demo",
        "status": "Completed",
        "state": "Completed",
        "attempt": 1,
        "is_checked": True,
        "hosts": hosts,
        "sick": [],
        "past_attempts": [],
        **changes,
    }


def test_a_healthy_job_has_two_matrices_without_colours():
    assert health_text(page(), colours=False) == "\n".join(
        [
            "demo  Completed, attempt 1",
            "",
            "HOST    DISK  MEMORY  CLOCK  GPU  NAMES  PORT  INTERFACE  COLLECTIVE",
            "algo-1  ok    ok      ok     -    ok     ok    ok         ok",
            "algo-2  ok    ok      ok     -    ok     ok    ok         ok",
            "",
            "FROM/TO  algo-1  algo-2",
            "algo-1   \\       ok",
            "algo-2   ok      \\",
            "",
            "not checked: gpu: the host has no GPU",
            "",
            "all that was checked is well",
        ]
    )
    assert not is_bad(page())


def test_defects_are_named_in_their_cells_and_explained_below():
    sick = page(sick=[{"host": "algo-1", "peer": "algo-2", "reason": "algo-1 to algo-2, mtu: 1280"}])
    sick["hosts"]["algo-1"][-1:] = [
        item("algo-1", "mtu", "bad", "algo-2", words="packets above 1280 bytes vanish", cause="a hop"),
        item("algo-1", "drop", "bad", "algo-2", words="port 7777", cause="a rule"),
    ]
    sick["hosts"]["algo-2"][0] = item("algo-2", "disk", "warn", words="1.0 GiB free")
    text = health_text(sick, colours=False)
    assert "algo-1   \\       BAD mtu,drop" in text.splitlines()[6:8]
    assert "BAD   algo-1 to algo-2  mtu: packets above 1280 bytes vanish; a hop" in text
    assert "warn  algo-2  disk: 1.0 GiB free" in text
    assert "sick: the link algo-1 - algo-2: algo-1 to algo-2, mtu: 1280" in text
    assert "all that was checked is well" not in text
    assert is_bad(sick)


def test_pending_checks_are_not_shown_as_good():
    early = page(status="InProgress", state="Queued")
    early["hosts"]["algo-2"][-1] = item("algo-2", "link", "pending", "algo-1")
    early["hosts"]["algo-2"][6] = item("algo-2", "collective", "pending")
    text = health_text(early, colours=False)
    assert text.startswith("demo  Queued, attempt 1\n")
    assert "algo-2   ...     \\" in text.splitlines()
    assert "still under way: collective, link" in text
    assert text.endswith("all that was checked so far is well")
    assert not is_bad(early)
    gone = health_text({**early, "status": "Failed"}, colours=False)
    assert "never known: the hosts were gone before: collective, link" in gone


def test_colours_do_not_shift_columns():
    lines = health_text(page(), colours=True).splitlines()
    assert lines[3].startswith("algo-1  \033[32mok\033[0m    \033[32mok\033[0m")


def test_a_job_without_checks_or_without_hosts_says_so():
    assert "were not checked (setting health_checks, or InfraCheckConfig" in health_text(
        page(is_checked=False), colours=False
    )
    assert "there are no hosts" in health_text(page(hosts={}), colours=False)
    assert "has reported its checks yet" in health_text(page(hosts={"algo-1": []}), colours=False)


def test_attempts_that_ended_early_are_listed_with_their_reason():
    text = health_text(page(attempt=2, past_attempts=[{"number": 1, "reason": "the link is sick"}]), colours=False)
    assert "attempt 1 ended early: the link is sick" in text


def test_findings_are_printed_as_json(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("CLARY_HOME", str(tmp_path))
    code = main(["doctor", "--json"])
    findings = json.loads(capsys.readouterr().out)
    assert code == int(any(finding["is_problem"] for finding in findings))
    (service,) = (finding["text"] for finding in findings if finding["name"] == "service")
    assert service == f"does not run for {tmp_path}; start it with: clary up"
