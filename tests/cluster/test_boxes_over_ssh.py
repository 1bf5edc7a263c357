"""`clary hosts` over a real sshd: adding, listing, draining, removing, upgrading, joining, and refusals."""

import json
import os
import stat
import sys

import pytest
from box_head_service import until

from clary.testing.box_bed import HEAD_ADDRESS, PORT

pytest_plugins = ["box_world"]
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of machines: needs root"),
    pytest.mark.long(90),
]

TAG = "pool_0123456789ab"
# The command line of another version, whose daemon has one more file.
NEWER = """
import io, sys, zipfile
import clary.cli.hosts, clary.cli.remote_python
from clary.agent.node.packing import pack_node
from clary.cli.main import main

def newer():
    data = io.BytesIO(pack_node())
    with zipfile.ZipFile(data, "a") as archive:
        archive.writestr("clary/newer.py", "")
    return data.getvalue()

clary.cli.remote_python.pack_node = clary.cli.hosts.pack_node = newer
sys.exit(main(sys.argv[1:]))
"""


def test_boxes_are_added_listed_drained_and_removed(bed, service):
    added = bed.clary("hosts", "add", "ml@box1", "root@box2")
    one, two = added.stdout.splitlines()
    assert one.startswith("box1   ready   ")
    assert one.endswith(" GiB, no GPUs, namespaces without root")
    assert two.endswith(" GiB, no GPUs, namespaces")
    assert "after a reboot it is started by: clary hosts add" in added.stderr

    rows = bed.rows()
    assert {name: row["state"] for name, row in rows.items()} == {"box1": "ready", "box2": "ready"}
    assert (rows["box1"]["user"], rows["box1"]["hostname"], rows["box1"]["address"]) == ("ml", "box1", "10.99.0.1")
    folder = bed.node_folder("box1", "ml")
    assert {stat.S_IMODE(place.stat().st_mode) for place in (folder, folder.parent)} == {0o700}
    assert stat.S_IMODE((folder / "token").stat().st_mode) == 0o600
    token = (folder / "token").read_text()
    assert not any(token in args for args in bed.processes("box1").values())

    service.ask("ask", TAG, 2)
    until(lambda: service.told(TAG)["state"] == "granted", "both hosts start")
    listed = bed.clary("hosts").stdout.splitlines()
    assert [line.split()[:2] for line in listed[1:]] == [["box1", "busy"], ["box2", "busy"]]
    assert "job-b algo-1" in listed[1]

    assert bed.clary("hosts", "drain", "box1").stdout == "box1 is drained: it gets no new host\n"
    notes = folder / f"scratch/{TAG}-0/notes"
    until(lambda: "SIGTERM" in notes.read_text(), "the agent gets its notice")
    assert service.told(TAG)["members"]["0"]["notice"]["kind"] == "drained"
    bed.clary("hosts", "drain", "box1")
    bed.clary("hosts", "add", "ml@box1")
    assert notes.read_text().count("SIGTERM") == 1, "a second one would be an order to leave"
    assert bed.clary("hosts", "resume", "box1").stdout == "box1 is in use again\n"

    removed = bed.clary("hosts", "remove", "box1", "box2")
    assert removed.stdout == "box1 is removed\nbox2 is removed\n"
    assert bed.processes("box1") == bed.processes("box2") == {}
    assert list(bed.home_of("box1", "ml").iterdir()) == []
    assert list(bed.home_of("box2", "root").iterdir()) == []
    assert bed.clary("hosts").stdout.startswith("no boxes: add some with: clary hosts add USER@BOX")
    told = service.told(TAG)
    assert {member["is_alive"] for member in told["members"].values()} == {False}
    assert told["members"]["0"]["why_dead"] == "box1 was removed by its owner"
    assert service.ask("end", TAG) == "certain"


def test_a_boot_gets_its_arguments_but_no_secret_in_its_command_line(bed, service):
    bed.clary("hosts", "add", "ml@box1", "--scratch", "/tmp/data")
    service.ask("ask", TAG, 1)
    read = "import json,sys; print(open(sys.argv[1]).read())"
    place = f"/tmp/data/clary-node-5000/box1/{TAG}-0/facts.json"
    facts = json.loads(
        until(lambda: bed.run("box1", "python3", "-c", read, place, check=False).stdout, "the boot says its facts")
    )
    service.ask("allocations")
    assert service.ask("why_not_proved", TAG, 0, facts["proof"]) == ""
    assert service.ask("why_not_proved", TAG, 0, "wrong") != ""
    arguments = facts["arguments"]
    assert facts["proof"] not in " ".join(arguments)
    assert arguments[arguments.index("--service") + 1] == f"https://{HEAD_ADDRESS}:{PORT}"
    assert not [name for name in facts["variables"] if name.startswith("SSH_")]
    owner = bed.run("box1", "stat", "-c", "%U %a", place.rpartition("/")[0]).stdout.split()
    assert owner[0] == "ml"
    bed.clary("hosts", "remove", "box1")
    assert bed.run("box1", "ls", "-A", "/tmp/data").stdout == ""


def test_a_newer_daemon_takes_over_while_a_lease_runs(bed, service):
    bed.clary("hosts", "add", "ml@box1")
    service.ask("ask", TAG, 1)
    until(lambda: service.told(TAG)["state"] == "granted", "the host starts")
    folder = bed.node_folder("box1", "ml")
    facts = folder / f"scratch/{TAG}-0/facts.json"
    pid = json.loads(until(lambda: facts.exists() and facts.read_text(), "the boot says its facts"))["pid"]
    [old] = folder.glob("node-*.pyz")
    before = bed.rows()["box1"]["daemon"]
    command = [sys.executable, "-c", NEWER, "hosts", "add", "ml@box1"]
    done = bed.run("head", *command, CLARY_HOME=str(bed.home))
    assert done.stdout.startswith("box1   busy   ")
    row = bed.rows()["box1"]
    assert row["daemon"] != before
    assert [path.name for path in folder.glob("node-*.pyz")] == [f"node-{row['daemon']}.pyz"]
    assert not old.exists()
    assert pid in bed.processes("box1")
    assert service.told(TAG)["members"]["0"]["is_alive"]
    listed = bed.clary("hosts").stdout
    assert "another version of the daemon" in listed
    assert service.ask("end_host", TAG, 0) == "certain"
    assert pid not in bed.processes("box1")


def test_a_machine_joins_with_a_token_that_is_valid_once(bed, service, tmp_path):
    token = bed.clary("hosts", "token").stdout
    file = bed.home_of("box1", "root") / "token"
    file.write_text(token)
    url = f"https://{HEAD_ADDRESS}:{PORT}"
    joined = bed.clary("join", url, "--token-file", str(file), machine="box1")
    assert joined.stdout.startswith("box1   has joined   ")
    until(lambda: bed.rows()["box1"]["state"] == "ready", "the box asks")
    again = bed.clary("join", url, "--token-file", str(file), machine="box2", check=False)
    assert again.returncode == 1
    assert "the token does not let a box join: it was used, or has expired" in again.stderr
    other = "0" * 64 + token[64:]
    file.write_text(other)
    wrong = bed.clary("join", url, "--token-file", str(file), machine="box1", check=False)
    assert wrong.returncode == 2
    assert "is not the service that the token is for" in wrong.stderr
    file.unlink()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nobody@box1"], "nobody@box1: ssh does not get there: nobody@box1: Permission denied (publickey"),
        (["ml@box9"], "ml@box9: ssh does not get there: ssh: Could not resolve hostname box9"),
        (["ml@box1", "--python", "python9"], "ml@box1: there is no python9; install Python 3.10 or newer"),
        (["ml@box1", "--scratch", "/proc/no"], "box1: nothing can be installed there: /proc"),
        (["-oProxyCommand=x"], "the following arguments are required: USER@BOX"),
        (["ml@box1", "--ssh-option", "nonsense"], "--ssh-option 'nonsense': expected NAME=VALUE as of ssh_config"),
        (["ml@box1", "root@box1"], "two boxes would have one name"),
        (["ml@box1;true"], "'box1;true' is no name for a box"),
        (["ml@box1", "--python", "python3;true"], "expected a name or a path without spaces"),
    ],
)
def test_a_box_that_cannot_be_added_gives_the_remedy_and_keeps_no_file(bed, service, arguments, words):
    refused = bed.clary("hosts", "add", *arguments, check=False)
    assert refused.returncode != 0
    assert words in refused.stderr
    assert bed.rows() == {}
    assert list(bed.home_of("box1", "ml").iterdir()) == []


def test_adding_a_box_that_cannot_reach_the_service_fails_with_the_address(bed, service):
    service.stop()
    service.start(advertised="10.99.0.253")  # an address without a machine
    refused = bed.clary("hosts", "add", "ml@box1", check=False)
    assert refused.returncode == 1
    assert f"box1: it does not reach the service at https://10.99.0.253:{PORT}: " in refused.stderr
    assert "boxes dial that address: see setting advertise_url, and open its port" in refused.stderr
    assert bed.rows() == {}


def test_a_box_refuses_another_service_at_the_same_address(bed, service):
    bed.clary("hosts", "add", "ml@box1")
    service.ask("ask", TAG, 1)
    until(lambda: service.told(TAG)["state"] == "granted", "the host starts")
    until(lambda: "sleep 98765" in bed.processes("box1").values(), "its child runs")
    before = bed.processes("box1")
    service.stop()
    known, bed.home = bed.home, bed.folder / "another"
    service.start()
    log = bed.node_folder("box1", "ml") / "node.log"
    until(lambda: "CERTIFICATE_VERIFY_FAILED" in log.read_text(), "the box refuses it")
    assert bed.processes("box1") == before
    service.stop()
    bed.home = known
    service.start()


def test_output_of_a_shell_is_ignored_and_an_old_python_is_refused(bed, service):
    home = bed.home_of("box1", "ml")
    (home / "old-python").write_text(
        "#!/bin/sh\nexec /usr/bin/python3 -c 'import sys; sys.version_info=(3,9); "
        'sys.version="3.9.2 (old)"; exec(sys.argv[1])\' "$4" "$5"\n'
    )
    (home / "old-python").chmod(0o755)
    place = bed.folder / "home/ml/old-python"
    refused = bed.clary("hosts", "add", "ml@box1", "--python", str(place), check=False)
    assert f"{place} is Python 3.9.2, and 3.10 is the oldest that will do" in refused.stderr
    (home / "chatty").write_text("#!/bin/sh\necho Welcome to box1\necho '{}' \nexec /usr/bin/python3 \"$@\"\n")
    (home / "chatty").chmod(0o755)
    added = bed.clary("hosts", "add", "ml@box1", "--python", str(bed.folder / "home/ml/chatty"))
    assert added.stdout.startswith("box1   ready   ")
    for name in ("old-python", "chatty"):
        (home / name).unlink()


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ("yes CLARY-NODE", "far too long a one"),
        ("echo 'CLARY-NODE {'", "its answer is not JSON: '{'"),
        ("echo 'CLARY-NODE []'", "its answer is not JSON: '[]'"),
        ('echo \'CLARY-NODE {"facts": {"num_cpus": "many"}}\'', "its facts make no sense"),
        ('printf \'CLARY-NODE {"error": "\\\\u001b[31mred"}\\n\'', "ml@box1: [31mred"),
    ],
)
def test_a_malformed_answer_of_a_box_is_refused(bed, service, says, words):
    home = bed.home_of("box1", "ml")
    (home / "liar").write_text(f"#!/bin/sh\n{says}\n")
    (home / "liar").chmod(0o755)
    refused = bed.clary("hosts", "add", "ml@box1", "--python", str(bed.folder / "home/ml/liar"), check=False)
    assert refused.returncode == 1
    assert words in refused.stderr.replace("\x1b", "ESC")
    assert bed.rows() == {}
    (home / "liar").unlink()
