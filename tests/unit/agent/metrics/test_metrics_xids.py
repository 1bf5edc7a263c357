"""Xids: errors of GPUs in the kernel log, and the hosts to which they belong."""

import os
import time
from pathlib import Path

import pytest

from clary.agent.metrics.gpu_texts import parse_xid
from clary.agent.metrics.xid_log import XidLog
from clary.base.clock import SystemClock
from clary.contract.gpu_errors import is_of_hardware, xid_in_words

DEADLINE_S = 30.0


def xid(bus, code):
    return f"3,17,4711,-;NVRM: Xid (PCI:{bus}): {code}, pid='<unknown>', name=<unknown>, something\n"


@pytest.fixture
def kernel(tmp_path):
    """Fake the kernel log by a file that grows, and /proc with three GPUs."""
    for bus in ("0000:e3:00.0", "0000:65:00.0", "0000:17:00.0"):
        (tmp_path / "gpus" / bus).mkdir(parents=True)
    log = tmp_path / "kmsg"
    log.write_text(xid("0000:65:00", 31))
    return log


@pytest.fixture
def open_log(kernel, tmp_path):
    made = []

    def build(*indices):
        folder = str(tmp_path / "gpus")
        made.append(XidLog(indices, clock=SystemClock(), kernel_log=str(kernel), gpus_folder=folder))
        return made[-1]

    yield build
    for log in made:
        log.close()


def add(kernel, text):
    with kernel.open("a") as log:
        log.write(text)


def test_errors_are_new_and_of_the_hosts_own_gpus_with_its_programs_indices(open_log, kernel):
    xids = open_log(1, 2)  # the machine's second and third GPU, by their buses 65 and e3
    xids.look()
    assert xids.errors() == ()
    add(kernel, xid("0000:e3:00", 79))
    xids.look()
    add(kernel, xid("0000:17:00", 48))  # a GPU of another host
    xids.look()
    (error,) = xids.errors()
    assert (error.gpu, error.xid) == (1, 79)
    assert error.not_before <= error.at
    assert (xids.last_code(2), xids.last_code(1), xids.last_code(0), xids.last_code(7)) == (79, 0, 48, 0)


def test_of_each_kind_the_newest_is_kept(open_log, kernel):
    xids = open_log(1)
    add(kernel, xid("0000:65:00", 13))
    xids.look()
    add(kernel, xid("0000:65:00", 94))
    xids.look()
    first = xids.errors()
    add(kernel, xid("0000:65:00", 13))
    xids.look()
    last = xids.errors()
    assert [error.xid for error in first] == [13, 94]
    assert [error.xid for error in last] == [94, 13]
    assert last[1].not_before >= first[1].at


def test_an_error_repeated_after_the_failure_keeps_its_first_time(open_log, kernel):
    xids = open_log(1)
    add(kernel, xid("0000:65:00", 119))
    xids.keep()
    kept = xids.errors()
    add(kernel, xid("0000:65:00", 119) + xid("0000:65:00", 79))
    xids.look()
    assert [error.xid for error in kept] == [119]
    assert [error.xid for error in xids.errors()] == [119, 79]
    assert xids.errors()[0] == kept[0]


def test_a_driver_that_floods_the_log_costs_no_memory(open_log, kernel):
    xids = open_log(1)
    add(kernel, "".join(xid("0000:65:00", code) for code in range(1, 200)))
    for _ in range(5):
        xids.look()
    assert len(xids.errors()) == 16


def test_nvidia_smi_gives_the_bus_of_a_gpu_if_proc_does_not(kernel, tmp_path):
    xids = XidLog((0,), clock=SystemClock(), kernel_log=str(kernel), gpus_folder=str(tmp_path / "none"))
    add(kernel, xid("0000:65:00", 119))
    xids.look()
    assert xids.errors() == ()
    xids.name_gpu(0, "0:65:0")
    assert [error.xid for error in xids.errors()] == [119]
    xids.close()
    xids.close()
    xids.look()
    assert [error.xid for error in xids.errors()] == [119], "what was seen stays known"


def test_an_unreadable_log_reports_no_error(tmp_path):
    xids = XidLog((0,), clock=SystemClock(), kernel_log=str(tmp_path / "none"), gpus_folder=str(tmp_path))
    xids.look()
    assert not xids.is_open
    assert xids.errors() == ()


def may_use_kernel_log():
    """Whether this process may read and write the kernel log; root may not in every container."""
    try:
        os.close(os.open("/dev/kmsg", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
        return Path("/proc/sys/kernel/printk_devkmsg").read_text().strip() != "off"
    except OSError:
        return False


def test_the_kernels_own_messages_are_read_and_those_of_programs_ignored(tmp_path):
    if not may_use_kernel_log():
        pytest.skip("needs root: writes to the kernel's log")
    (tmp_path / "beef:1f:1f.0").mkdir()
    xids = XidLog((0,), clock=SystemClock(), gpus_folder=str(tmp_path))
    assert xids.is_open
    with open("/dev/kmsg", "w") as kernel:
        kernel.write("NVRM: Xid (PCI:beef:1f:1f): 79, written by a test of a training service\n")
    written = []
    deadline_s = time.monotonic() + DEADLINE_S
    while not written and time.monotonic() < deadline_s:
        written = [record for record in xids._new_records() if "PCI:beef:1f:1f" in record]
        time.sleep(0.01)
    xids.close()
    (record,) = written
    assert parse_xid(record) is None
    assert parse_xid(f"3,{record.partition(',')[2]}") == ("beef:1f:1f", 79), "as the kernel itself writes it"


def test_xid_numbers_are_described_and_an_unknown_number_blames_no_party():
    assert xid_in_words(79) == "Xid 79, the GPU has fallen off the bus"
    assert xid_in_words(31) == "Xid 31, a memory access of the program that is not allowed"
    assert xid_in_words(777) == "Xid 777"
    assert [code for code in (13, 31, 43, 45, 63, 777) if is_of_hardware(code)] == []
    assert all(is_of_hardware(code) for code in (48, 74, 79, 94, 95, 119))
