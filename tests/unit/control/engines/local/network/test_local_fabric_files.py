"""Files of a job's network: the process that holds the network restores them, since it alone knows their content."""

import json

import pytest

from clary.base.errors import EngineError
from clary.control.engines.local import anchors
from clary.control.engines.local.attempt_record import NetworkReady
from clary.control.engines.local.network import fabric
from clary.control.engines.local.network.network_spec import READY_FILE, SPEC_FILE
from clary.testing.launch_plans import make_hosts, make_plan

RUINS = {
    "deleted": lambda path: path.unlink(),
    "emptied": lambda path: path.write_bytes(b""),
    "garbled": lambda path: path.write_bytes(b"\xff\x00nonsense"),
    "another's": lambda path: path.write_text("[]"),
}


@pytest.mark.parametrize("ruin", RUINS.values(), ids=RUINS)
def test_the_holder_of_a_network_restores_its_files(tmp_path, ruin, capsys):
    kept = {str(tmp_path / name): {"pid": 1, "of": name} for name in (READY_FILE, SPEC_FILE)}
    fabric.keep_files(kept)
    capsys.readouterr()
    fabric.keep_files(kept)
    assert capsys.readouterr().err == ""
    for path in kept:
        ruin(tmp_path / path)
    fabric.keep_files(kept)
    assert {path: json.loads((tmp_path / path).read_text()) for path in kept} == kept
    assert capsys.readouterr().err.count("is written again") == 2


def test_a_deleted_folder_is_not_restored(tmp_path):
    fabric.keep_files({str(tmp_path / "gone" / READY_FILE): {}})
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"folder": 1, "prefix_length": 2, "hosts": [1], "relays": []}'])
def test_a_launch_on_a_damaged_description_is_retryable(tmp_path, text):
    (tmp_path / SPEC_FILE).write_text(text)
    ready = NetworkReady(pid=1, started="1", error=None)
    with pytest.raises(EngineError, match="cannot be read") as told:
        anchors.with_network(make_plan(hosts=make_hosts(1)), ready, tmp_path)
    assert told.value.retryable
