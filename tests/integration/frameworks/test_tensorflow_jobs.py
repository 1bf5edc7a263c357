"""TensorFlow's own distributions over several hosts, as SDK v2 starts them: mirrored workers and parameter servers.

All train on the same digits as one process; synchronous distributions have the same losses as that process.
"""

import pytest
from boto3_clients import Clients, log_of
from tensorflow_jobs import check_same, tensorflow_service, train_alone, train_as_job

pytestmark = [
    pytest.mark.clients,
    pytest.mark.needs("tensorflow", "sdk2"),
    pytest.mark.timeout(500),
    pytest.mark.xdist_group("tensorflow-jobs"),
]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with tensorflow_service(tmp_path_factory.mktemp("tensorflow") / "home") as running:
        yield running


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return train_alone(tmp_path_factory.mktemp("tensorflow-alone"))


@pytest.mark.long(70)
def test_mirrored_workers_of_two_hosts_train_like_one_process(service, alone):
    _, found = train_as_job(service, "multi_worker_mirrored_strategy", "way=mirrored")
    check_same(found, alone, size=2)
    assert found[0]["keras"].startswith("3.")


@pytest.mark.long(30)
def test_fit_of_legacy_keras_on_mirrored_workers_trains_like_one_process(service, alone):
    pairs = ("way=mirrored_fit", "TF_USE_LEGACY_KERAS=1")
    _, found = train_as_job(service, "multi_worker_mirrored_strategy", *pairs)
    check_same(found, alone, size=2)


@pytest.mark.long(60)
def test_a_coordinator_on_parameter_servers_of_two_hosts_trains_like_one_process(service, alone):
    name, (coordinator, worker) = train_as_job(service, "parameter_server", "way=server")
    assert worker["served"]
    assert coordinator["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    assert coordinator["weights"] == pytest.approx(alone["weights"], rel=1e-4)
    assert [place.split("/")[3] for place in coordinator["devices"]] == ["task:0", "task:1"] * 2
    assert sum("step 9 loss=" in line for line in log_of(Clients(service), name)) == 1


@pytest.mark.long(60)
def test_graphs_of_two_hosts_train_the_same_variables_on_parameter_servers(service):
    _, found = train_as_job(service, "parameter_server", "way=graph", "steps=20")
    assert [facts["rank"] for facts in found] == [0, 1]
    assert found[0]["num_steps"] == 40, "steps of both hosts count on one server"
    for facts in found:
        assert facts["devices"] == ["/job:ps/task:0", "/job:ps/task:1"] * 2
        assert facts["losses"][-1] < 0.7 * max(found[0]["losses"][0], found[1]["losses"][0])
