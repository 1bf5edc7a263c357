"""`clary capacity`: the table of kinds, and nodes that are in several of its rows."""

from types import SimpleNamespace

import pytest

from clary.cli import capacity
from clary.cli.main import main


def kind(*types, nodes):
    return {
        "instance_types": list(types),
        "num_nodes": nodes,
        "num_free": 0,
        "num_cpus": 16,
        "memory_bytes": 1 << 36,
        "num_gpus": 0,
        "maps_to": "partition cpu",
        "isolation": "",
    }


@pytest.mark.parametrize(
    ("members", "words"),
    [({"num_nodes": 3}, ["3 nodes in all: some are in several rows"]), ({"num_nodes": 5}, []), ({}, [])],
)
def test_nodes_of_several_kinds_are_named_by_their_true_number(monkeypatch, capsys, members, words):
    page = {"engine": "slurm", "url": "", "kinds": [kind("ml.a", nodes=2), kind(nodes=3)], **members}

    class FakeConnection:
        """Returns the page."""

        def get(self, path):
            assert path == "capacity"
            return page

    monkeypatch.setattr(capacity, "connect", FakeConnection)
    assert main(["capacity"]) == 0
    first, header, *rows = capsys.readouterr().out.splitlines()
    assert first == "engine slurm"
    assert header.split()[:3] == ["TYPE", "NODES", "FREE"]
    assert len(rows) == 2 + len(words)
    assert rows[2:] == words


@pytest.mark.parametrize(("num_free", "shown"), [(2.0, "2"), (2.75, "2.75"), (0, "0")])
def test_fractions_of_hosts_are_shown_only_if_there_are_any(monkeypatch, capsys, num_free, shown):
    page = {"engine": "local", "url": "", "num_nodes": 4, "kinds": [{**kind("ml.a", nodes=4), "num_free": num_free}]}
    monkeypatch.setattr(capacity, "connect", lambda: SimpleNamespace(get=lambda path: page))
    assert main(["capacity"]) == 0
    assert capsys.readouterr().out.splitlines()[2].split()[:3] == ["ml.a", "4", shown]


def test_nodes_out_of_use_and_settings_that_select_no_node_are_named(monkeypatch, capsys):
    remark = '[slurm."ml.b"] selects no node: no partition gpuu has nodes; there are cpu'
    page = {
        "engine": "slurm",
        "url": "",
        "kinds": [{**kind("ml.a", nodes=3), "out_of_use": "c2 is down*: gone"}],
        "remarks": [remark],
    }
    monkeypatch.setattr(capacity, "connect", lambda: SimpleNamespace(get=lambda path: page))
    assert main(["capacity"]) == 0
    assert capsys.readouterr().out.splitlines()[3:] == ["out of use: c2 is down*: gone", f"!! {remark}"]
    page["kinds"] = []
    assert main(["capacity"]) == 1
    assert capsys.readouterr().out.splitlines() == ["slurm shows no nodes that jobs could use", f"!! {remark}"]
    page["remarks"] = []
    assert main(["capacity"]) == 1
    assert capsys.readouterr().out == "slurm has no nodes\n"
