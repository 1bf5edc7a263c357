"""The machine above the list of hosts: free resources, and resources that jobs hold."""

from types import SimpleNamespace

from clary.control.scheduling.machine import Machine
from clary.control.scheduling.placement import Capacity, Holding
from clary.control.server.pages.machine_page import MachinePage

CAPACITY = Capacity(max_hosts=4, num_gpus=2, memory_per_host_bytes=100, memory_bytes=400)


def page_of(root, holdings=()):
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 250 kB\n")
    admission = SimpleNamespace(holdings=lambda: list(holdings), capacity=CAPACITY)
    hub = SimpleNamespace(waiting_jobs=lambda: {"a": None})
    machine = Machine(num_cpus=2, memory_bytes=1024_000, num_gpus=2)
    return MachinePage(machine, admission, hub, root, root=root)


def tick(root, idle, busy):
    (root / "proc/stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 2 3\n")


def test_resources_of_jobs_are_added_up_and_a_shared_gpu_counts_once(tmp_path):
    holdings = [
        Holding(job_name="a", num_hosts=2, gpu_indices=(0,), memory_bytes=100),
        Holding(job_name="b", num_hosts=1, gpu_indices=(0,), memory_bytes=50),
    ]
    facts = page_of(tmp_path, holdings).facts()
    assert (facts["hosts_held"], facts["max_hosts"], facts["gpus_held"], facts["num_gpus"]) == (3, 4, 1, 2)
    assert (facts["promised_held_bytes"], facts["promised_bytes"], facts["num_waiting"]) == (150, 400, 1)
    assert facts["memory_free_bytes"] == 250 * 1024
    assert 0 < facts["disk_free_bytes"] <= facts["disk_bytes"]


def test_free_processors_are_measured_since_the_last_request(tmp_path):
    page = page_of(tmp_path)
    tick(tmp_path, idle=100, busy=900)
    assert page.facts()["cpu_free_percent"] is None
    tick(tmp_path, idle=160, busy=940)
    assert page.facts()["cpu_free_percent"] == 60
    assert page.facts()["cpu_free_percent"] is None, "no time has passed"


def test_unreadable_proc_stat_gives_no_value(tmp_path):
    assert page_of(tmp_path).facts()["cpu_free_percent"] is None
    (tmp_path / "proc/stat").write_text("nonsense")
    assert page_of(tmp_path).facts()["cpu_free_percent"] is None
