"""The resources that plain processes share are reported at the start of the service, and again for each job."""

from clary.agent.host.program_order import _shared_by_plan
from clary.agent.host.sandbox import Sandbox
from clary.contract.launch_plan import Isolation, Resources
from clary.control.engines.local.isolation import choose_isolation


def test_the_report_says_that_plain_processes_can_read_the_services_keys():
    isolation, sentences = choose_isolation("processes", {})
    assert isolation is Isolation.PROCESSES
    assert any("programs can read the service's keys" in sentence for sentence in sentences)


def test_a_job_of_plain_processes_notes_that_it_can_read_keys_of_other_jobs():
    sandbox = Sandbox(
        isolation=Isolation.PROCESSES,
        hostname="algo-1",
        host_folder="/host",
        ml_folder="/host/ml",
        hosts_file={},
        resources=Resources(num_cpus=1, memory_bytes=None),
        cgroup_name="c",
    )
    (sentence,) = _shared_by_plan(sandbox)
    assert "can read the keys of the service and of other jobs" in sentence
