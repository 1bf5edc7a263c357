"""When processes have found each other: torch, torchrun, mpirun, plain sockets."""

from dataclasses import replace

import pytest

from clary.agent.rendezvous.connection_table import Connection
from clary.agent.rendezvous.rendezvous_policy import Meeting, MeetingPlace, meeting_place
from clary.contract.launch_plan import Isolation, NetworkPlan
from clary.testing.launch_plans import make_hosts, make_plan

PORT, JAX_PORT = 7777, 7778
ONE, TWO, THREE = "10.0.0.1", "10.0.0.2", "10.0.0.3"


def outgoing(master=ONE, *, port=PORT, own_port=40000, inode=1, is_established=True, own=TWO):
    return Connection(local=(own, own_port), remote=(master, port), is_established=is_established, inode=inode)


def incoming(client, *, client_port=40000, inode=9):
    return Connection(local=(ONE, PORT), remote=(client, client_port), is_established=True, inode=inode)


def meeting(num_processes=1, others=(ONE,), num_hosts=2):
    addresses = frozenset({ONE, TWO, THREE}) if num_hosts == 3 else frozenset({ONE, TWO})
    return Meeting(
        MeetingPlace(
            ports=frozenset({PORT}), addresses=addresses, others=frozenset(others), num_processes=num_processes
        )
    )


def test_a_process_connected_to_the_master_completes_the_rendezvous():
    watched = meeting()
    assert not watched.is_complete([], {})
    assert watched.is_complete([outgoing()], {})


@pytest.mark.parametrize("address", [ONE, "127.0.0.1", "::1"])
def test_rank_0_connected_to_its_own_store_completes_the_rendezvous(address):
    assert meeting(others=[TWO]).is_complete([outgoing(address, own=ONE)], {})


@pytest.mark.parametrize(
    "other",
    [
        outgoing(port=PORT + 1),  # a connection of another program, for example ssh
        outgoing("93.184.216.34"),  # a foreign server that uses the same port
    ],
)
def test_connections_to_other_ports_and_addresses_do_not_count(other):
    assert not meeting().is_complete([other], {})


def test_a_listening_host_needs_a_connection_from_every_other_host():
    watched = meeting(others=[TWO, THREE], num_hosts=3)
    assert not watched.is_complete([incoming(TWO), incoming(TWO, client_port=40001)], {})
    assert watched.is_complete([incoming(THREE)], {})


def test_a_short_connection_counts_and_one_that_an_earlier_program_left_does_not():
    left, short = (outgoing(is_established=False, own_port=port, inode=0) for port in (40000, 40001))
    watched = meeting()
    assert not watched.is_complete([left], {})
    assert not watched.is_complete([left], {})
    assert watched.is_complete([left, short], {})


def test_each_of_several_processes_needs_a_connection_of_its_own():
    watched = meeting(2)
    first, again, second = outgoing(inode=1), outgoing(inode=2, own_port=40001), outgoing(inode=3, own_port=40002)
    holders = {1: 100, 2: 100, 3: 101}
    assert not watched.is_complete([first], holders)
    assert not watched.is_complete([first, again], holders), "torch clones its store: one rank, two connections"
    assert watched.is_complete([second], holders)


def test_connections_of_unknown_processes_count_singly():
    assert meeting(2).is_complete([outgoing(inode=1), outgoing(inode=2, own_port=40001)], {})


def test_holders_are_looked_up_only_for_new_connections_of_several_processes():
    one = meeting()
    assert not one.needs_holders([outgoing()])
    several = meeting(3)
    assert not several.needs_holders([incoming(TWO)])
    assert several.needs_holders([outgoing(inode=5)])
    several.is_complete([outgoing(inode=5)], {5: 100})
    assert not several.needs_holders([outgoing(inode=5)])


def plan_of(num_hosts=2, *, isolation=Isolation.NAMESPACES, groups=(), **changes):
    hosts = make_hosts(num_hosts, isolation=isolation)
    hosts = tuple(
        replace(host, instance_group=group) for host, group in zip(hosts, groups or ["all"] * num_hosts, strict=True)
    )
    paths = {host.name: f"/proc/1/fd/{host.index}" for host in hosts} if isolation is Isolation.NAMESPACES else {}
    return make_plan(hosts=hosts, isolation=isolation, network=NetworkPlan(namespace_paths=paths), **changes)


def place_of(plan, name="algo-1", *, num_processes=1):
    return meeting_place(plan, plan.host(name), num_processes=num_processes)


def test_hosts_meet_at_the_master_port_of_any_of_them():
    place = place_of(plan_of(3))
    assert place.ports == {PORT, JAX_PORT}
    assert (place.addresses, place.others) == ({ONE, TWO, THREE}, {TWO, THREE})


def test_a_single_process_has_no_rendezvous_and_several_on_one_host_have():
    assert place_of(plan_of(1)) is None
    assert place_of(plan_of(1), num_processes=4).others == frozenset()


def test_hosts_that_share_the_machines_network_are_not_watched():
    assert place_of(plan_of(2, isolation=Isolation.PROCESSES)) is None


def test_hosts_of_groups_outside_the_distribution_are_not_waited_for():
    hyperparameters = {
        "sagemaker_torch_distributed_enabled": "true",
        "sagemaker_distribution_instance_groups": '["train"]',
    }
    plan = plan_of(3, groups=["train", "train", "feed"], hyperparameters=hyperparameters)
    assert place_of(plan).others == {TWO}
    assert place_of(plan, "algo-3") is None
    assert place_of(replace(plan, command=("bash",)), "algo-3").others == {ONE, TWO}, "a command runs everywhere"


def test_ports_that_users_have_chosen_for_the_store_count_too():
    plan = plan_of(
        hyperparameters={"sagemaker_mpi_enabled": "true", "mp_parameters": '{"ddp": true, "ddp_port": 8899}'},
        user_environment={"CLARY_COLLECTIVE_PORT": "7800"},
    )
    assert place_of(plan).ports == {PORT, JAX_PORT, 8899, 7800}


@pytest.mark.parametrize("written", ["", "0", "x", "99999", "-1", "7777.5"])
def test_invalid_ports_are_ignored(written):
    assert place_of(plan_of(user_environment={"CLARY_COLLECTIVE_PORT": written})).ports == {PORT, JAX_PORT}
