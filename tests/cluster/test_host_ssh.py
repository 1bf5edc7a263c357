"""ssh between the hosts of an attempt: sshd on port 22 in each, root to root, by ssh and by paramiko. Needs root."""

import os
import shlex
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from host_world import PACKAGE_FOLDER, PATH, HostWorld, shell

from clary.agent.host import ssh_access
from clary.agent.host.ssh_access import SSHD, prepare_ssh, why_no_ssh
from clary.base.errors import AgentError
from clary.base.mapped_users import MappedUsers
from clary.control.engines.local.network.network_building import build
from clary.control.engines.local.network.network_spec import HostSpec, NetworkSpec

TRAIN_PYTHON = Path(__file__).resolve().parents[2] / ".venvs/train/bin/python"
# The environment's links lead to its real folder, its interpreter lies in another one.
TRAIN_FOLDERS = (str(TRAIN_PYTHON.parents[1]), str(TRAIN_PYTHON.resolve().parents[1]))
ADDRESSES = {"algo-1": "10.9.0.1", "algo-2": "10.9.0.2"}
HOME = "/opt/ml/home"
# The steps of sagemaker 3, in the same order.
PARAMIKO_CLIENT = """
import paramiko
with paramiko.SSHClient() as client:
    client.load_system_host_keys()
    client.set_missing_host_key_policy(paramiko.client.RejectPolicy())
    client.connect("algo-2", port=22)
    print("paramiko reached", client.exec_command("hostname", timeout=10)[1].read().decode())
"""

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="sshd has to be started by root"),
    pytest.mark.needs("sshd"),
]


@pytest.fixture
def hosts(tmp_path):
    """Two connected hosts, each running sshd as a container of SageMaker would."""
    world = HostWorld("root")
    shared = world.folder("attempt") / "ssh"
    links = tuple(HostSpec(name, address, None, 0.0, 0.0) for name, address in ADDRESSES.items())
    network = build(NetworkSpec("", 24, links, ()))
    place = f"/proc/{os.getpid()}/fd"
    users = MappedUsers(namespace_path=f"{place}/{network.users}", first_id=network.first_id)
    sandboxes = []
    for name in ADDRESSES:
        folder = world.folder(name)
        binds = prepare_ssh(shared, folder, addresses=ADDRESSES, home=HOME)
        made = world.sandbox(name, folder=folder, binds=binds, visible_folders=(PACKAGE_FOLDER, *TRAIN_FOLDERS))
        path = f"{place}/{network.host_descriptors[name]}"
        sandboxes.append(replace(made, network_namespace_path=path, mapped_users=users))
    second = shell(f"echo FROM_MASTER=set >> /etc/environment; exec {SSHD} -D", environment={"HOME": HOME})
    world.start(second, sandbox=sandboxes[1])
    yield world, sandboxes[0]
    world.close()
    for descriptor in (network.users, network.switch_descriptor, *network.host_descriptors.values()):
        os.close(descriptor)
    for link in network.links:
        link.close()


def run_on_first(hosts, command):
    """Run a command on algo-1 as soon as algo-2 accepts connections."""
    world, sandbox = hosts
    until_up = "for i in $(seq 100); do (exec 3<>/dev/tcp/algo-2/22) 2>/dev/null && break; sleep 0.1; done"
    script = f"export HOME={HOME}; {until_up}; {command}"
    return world.run(f"exec bash -c {shlex.quote(script)} 2>&1", sandbox=sandbox)


def test_ssh_runs_commands_on_the_other_host_without_a_prompt(hosts):
    assert run_on_first(hosts, "ssh algo-2 hostname; ssh 10.9.0.2 hostname").split() == ["algo-2", "algo-2"]


def test_ssh_sessions_have_the_variables_of_etc_environment(hosts):
    assert run_on_first(hosts, "ssh algo-2 'echo $FROM_MASTER'") == "set\n"
    assert "FROM_MASTER" not in Path("/etc/environment").read_text(), "the machine's own file is untouched"


@pytest.mark.needs("mpirun")
def test_mpirun_starts_ranks_on_the_other_host(hosts):
    command = "mpirun --allow-run-as-root --host algo-1:1,algo-2:1 -np 2 -mca oob_tcp_if_include eth0 hostname"
    output = run_on_first(hosts, command)
    assert sorted(output.split()) == ["algo-1", "algo-2"], output


def test_password_and_foreign_keys_are_refused(hosts):
    command = "ssh-keygen -q -t ed25519 -N '' -f /tmp/other; ssh -F none -o IdentitiesOnly=yes -i /tmp/other algo-2 id"
    assert "Permission denied (publickey)" in run_on_first(hosts, command)


@pytest.mark.needs("train")
def test_paramiko_knows_the_other_hosts_key_and_gets_in(hosts):
    output = run_on_first(hosts, f"{TRAIN_PYTHON} -c {shlex.quote(PARAMIKO_CLIENT)}")
    assert "paramiko reached algo-2" in output, output


def test_machines_own_ssh_files_are_out_of_sight(hosts):
    output = run_on_first(hosts, "cat /etc/ssh/ssh_host_*_key; ls /etc/ssh")
    assert "ssh_host_rsa_key" not in output
    for path in Path("/etc/ssh").glob("ssh_host_*_key"):
        assert path.read_text() not in output


def test_hosts_that_prepare_ssh_at_once_get_the_same_keys(tmp_path):
    folders = [tmp_path / f"algo-{number}" for number in range(1, 7)]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda folder: prepare_ssh(tmp_path / "ssh", folder, addresses=ADDRESSES), folders))
    keys = {(folder / "ssh/user/id_ed25519").read_bytes() for folder in folders}
    assert len(keys) == 1
    assert os.listdir(tmp_path / "ssh") == ["keys"], "nothing that lost the race stays"
    for path in (*(tmp_path / "ssh/keys").glob("*_key"), folders[0] / "ssh/etc/ssh_host_ed25519_key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "ssh").stat().st_mode) == 0o700


def test_a_failing_ssh_keygen_is_an_error_with_its_output(tmp_path, monkeypatch):
    (tmp_path / "algo-1").mkdir()
    (tmp_path / "programs").mkdir()
    failing = tmp_path / "programs" / "ssh-keygen"
    failing.write_text("#!/bin/sh\necho no entropy >&2\nexit 3\n")
    failing.chmod(0o755)
    monkeypatch.setattr(ssh_access, "_PROGRAM_PATH", f"{tmp_path}/programs:{PATH}")
    with pytest.raises(AgentError, match="exit code 3: no entropy"):
        prepare_ssh(tmp_path / "ssh", tmp_path / "algo-1", addresses=ADDRESSES)
    assert os.listdir(tmp_path / "ssh") == []


def test_on_a_machine_without_sshd_the_reason_names_the_package_to_install(monkeypatch):
    assert why_no_ssh(has_user_namespace=False) is None
    monkeypatch.setattr(ssh_access, "SSHD", "/no/sshd")
    assert "openssh-server" in why_no_ssh(has_user_namespace=False)
    assert "one user only" in why_no_ssh(has_user_namespace=True)
