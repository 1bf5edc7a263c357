"""GPUs: lines of nvidia-smi in its documented form, and a fake nvidia-smi. No test has run on a GPU."""

from __future__ import annotations

import stat
import sys
import time
from pathlib import Path

import pytest

from clary.agent.metrics.gpu_source import GpuSource
from clary.agent.metrics.gpu_texts import QUERY, bus_of, parse_gpu_line, parse_xid
from clary.agent.metrics.xid_log import XidLog
from clary.base.clock import SystemClock

DEADLINE_S = 30.0
LINE = "0, 00000000:65:00.0, 97, 61, 71234, 81559, 688.42, 67, 1755, 0x0000000000000004, 0"
IDLE_LINE = "1, 00000000:E3:00.0, 0, 0, 4, 81559, 71.30, 30, 345, 0x0000000000000001, 0"
POOR_LINE = "0, 00000000:01:00.0, 5, 3, 1024, 8192, [N/A], 55, 1410, 0x0000000000000000, [N/A]"


def test_a_line_becomes_numbers_in_our_units():
    reading = parse_gpu_line(LINE)
    assert (reading.index, reading.bus) == (0, "0:65:0")
    assert reading.values == {
        "utilisation_percent": 97.0,
        "memory_utilisation_percent": 61.0,
        "memory_used_bytes": 71234.0 * 2**20,
        "memory_total_bytes": 81559.0 * 2**20,
        "memory_percent": 87.34,
        "power_w": 688.42,
        "temperature_c": 67.0,
        "clock_mhz": 1755.0,
        "throttle_reasons": 4.0,
        "throttled": 0.0,
        "power_capped": 1.0,
        "ecc_uncorrected_errors": 0.0,
    }


def test_an_idle_gpu_is_not_throttled():
    assert parse_gpu_line(IDLE_LINE).values["throttled"] == 0.0


@pytest.mark.parametrize("reasons", ["0x0000000000000008", "0x20", "0x40", "0x84"])
def test_a_gpu_that_is_slowed_down_by_heat_or_hardware_is_throttled(reasons):
    assert parse_gpu_line(LINE.replace("0x0000000000000004", reasons)).values["throttled"] == 1.0


def test_a_gpu_with_errors_reports_only_its_valid_fields():
    lost = "0, 00000000:65:00.0, [Unknown Error], [GPU is lost], [Not Supported], 81559, N/A, 67, [N/A], [N/A], [N/A]"
    assert parse_gpu_line(lost).values == {"memory_total_bytes": 81559.0 * 2**20, "temperature_c": 67.0}


def test_fields_that_a_gpu_lacks_are_left_out():
    values = parse_gpu_line(POOR_LINE).values
    assert "power_w" not in values
    assert "ecc_uncorrected_errors" not in values
    assert values["temperature_c"] == 55.0


@pytest.mark.parametrize(
    "line",
    ["", "No devices were found", "0, 1", "Unable to determine the device handle for GPU 0000:65:00.0: Unknown Error"],
)
def test_a_line_of_another_kind_is_no_reading(line):
    assert parse_gpu_line(line) is None


def test_an_xid_is_found_in_the_kernels_log_and_belongs_to_the_gpu_on_its_bus():
    record = (
        "4,1234,5678,-;NVRM: Xid (PCI:0000:65:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    )
    assert parse_xid(record) == (bus_of("00000000:65:00.0"), 79)
    assert parse_xid("6,1,2,-;usb 1-1: new device") is None


def fake_tool(folder: Path, body: str) -> list[str]:
    """Return a command that stands in for nvidia-smi."""
    script = folder / "fake-nvidia-smi"
    script.write_text(f"#!{sys.executable}\nimport os, sys, time\n{body}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return [str(script)]


def read_until(source: GpuSource, holds) -> dict[str, float]:
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        values = source.read(time.monotonic())
        if holds(values):
            return values
        assert time.monotonic() < deadline_s, values
        time.sleep(0.01)


@pytest.fixture
def gpu_source(tmp_path):
    made = []

    def build(body: str, *indices: int, **options: object) -> GpuSource:
        log = options.pop("kernel_log", tmp_path / "no-such-log")
        xids = XidLog(indices, clock=SystemClock(), kernel_log=str(log), gpus_folder=str(tmp_path / "none"))
        made.append(GpuSource(indices, interval_s=0.5, xids=xids, command=fake_tool(tmp_path, body), **options))
        return made[-1]

    yield build
    for source in made:
        source.close()


def test_one_tool_serves_all_rows_and_gpus_are_counted_as_the_program_counts_them(gpu_source, tmp_path):
    starts = tmp_path / "starts"
    body = f"""
open({str(starts)!r}, "a").write(" ".join(sys.argv[1:]) + chr(10))
number = 0
while True:
    number += 1
    # In two pieces, as a pipe may give them.
    os.write(1, b"4, 00000000:65:00.0, %d, 61, 100, 200, 688.42, 67, 1755, 0x0, 0" % number)
    time.sleep(0.01)
    os.write(1, b"\\n5, 00000000:E3:00.0, 7, 0, 4, 81559, 71.30, 30, 345, 0x1, 0\\n9, x\\n")
"""
    source = gpu_source(body, 4, 5)
    values = read_until(source, lambda values: values.get("gpu-0/utilisation_percent", 0) >= 5)
    assert values["gpu-0/memory_percent"] == 50.0
    assert values["gpu-1/utilisation_percent"] == 7.0
    assert "gpu-4/power_w" not in values
    assert "gpu-0/xid" not in values, "the kernel's log cannot be read"
    assert starts.read_text().splitlines() == [
        f"--query-gpu={','.join(QUERY)} --format=csv,noheader,nounits --id=4,5 --loop-ms=500"
    ]


def test_a_silent_tool_leaves_no_old_values(gpu_source):
    source = gpu_source(f'print("{LINE}", flush=True)\ntime.sleep(600)', 0)
    read_until(source, lambda values: "gpu-0/power_w" in values)
    assert source.read(time.monotonic() + 60) == {}


def test_a_tool_that_ends_is_started_again_after_a_while_and_not_at_once(gpu_source, caplog):
    source = gpu_source(f'print("{LINE}", flush=True); sys.exit(9)', 0)
    read_until(source, lambda values: "gpu-0/power_w" in values)
    deadline_s = time.monotonic() + DEADLINE_S
    while "nvidia-smi has ended with 9" not in caplog.text:
        source.read(time.monotonic())
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert source._tool is None
    source.read(time.monotonic() + 61)
    assert source._tool is not None


def test_an_older_driver_is_queried_with_its_own_field_names_at_once(gpu_source, tmp_path):
    """The fake nvidia-smi answers an unknown field with the message and exit code of the real one."""
    body = f"""
if "clocks_event_reasons.active" in sys.argv[1]:
    print('Field "clocks_event_reasons.active" is not a valid field to query.', flush=True)
    sys.exit(2)
while True:
    print("{LINE}", flush=True)
    time.sleep(0.05)
"""
    source = gpu_source(body, 0)
    assert read_until(source, lambda values: "gpu-0/power_capped" in values)["gpu-0/power_capped"] == 1.0


def test_one_lost_gpu_does_not_hide_the_others(gpu_source):
    body = f"""
if any(word.startswith("--id=") for word in sys.argv):
    print("Unable to determine the device handle for GPU0000:E3:00.0: Unknown Error", flush=True)
    sys.exit(6)
while True:
    print("{LINE}", flush=True)
    time.sleep(0.05)
"""
    source = gpu_source(body, 0, 1)
    values = read_until(source, lambda values: "gpu-0/power_w" in values)
    assert not [name for name in values if name.startswith("gpu-1/")]


def test_a_tool_that_fails_with_every_query_pauses_and_its_message_is_logged(gpu_source, caplog):
    source = gpu_source('print("No devices were found", flush=True); sys.exit(6)', 0)
    deadline_s = time.monotonic() + DEADLINE_S
    while "No devices were found" not in caplog.text:
        source.read(time.monotonic())
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert sum("nvidia-smi has ended" in record.message for record in caplog.records) == 1
    assert source._tool is None


def test_a_tool_that_hangs_is_ended_once_and_started_again_only_when_it_is_gone(gpu_source, caplog):
    source = gpu_source("time.sleep(600)", 0)
    begin_s = time.monotonic()
    source.read(begin_s)
    first = source._tool
    source.read(begin_s + 61)
    source.read(begin_s + 62)
    assert sum("said nothing" in record.message for record in caplog.records) == 1
    first.wait(DEADLINE_S)
    source.read(begin_s + 63)
    assert source._tool is None
    source.read(begin_s + 124)
    assert source._tool is not None
    assert source._tool is not first


def test_a_machine_without_the_tool_is_no_error(tmp_path, caplog):
    xids = XidLog((0,), clock=SystemClock(), kernel_log=str(tmp_path / "none"), gpus_folder=str(tmp_path / "none"))
    source = GpuSource((0,), interval_s=0.5, xids=xids, command=[str(tmp_path / "none")])
    assert source.read(0.0) == source.read(1e6) == {}
    assert sum("GPUs are not measured" in record.message for record in caplog.records) == 1
    source.close()


def test_an_xid_is_reported_for_its_gpu_even_if_the_gpu_is_silent(gpu_source, tmp_path):
    log = tmp_path / "kmsg"
    log.touch()  # the test appends to it, as the kernel does to its log
    source = gpu_source(f'while True: print("{LINE}", flush=True); time.sleep(0.05)', 0, kernel_log=log)
    assert read_until(source, lambda values: "gpu-0/xid" in values)["gpu-0/xid"] == 0.0
    with log.open("a") as kernel:
        kernel.write("3,1,2,-;NVRM: Xid (PCI:0000:65:00): 48, pid=77, name=python, DBE\n")
    assert read_until(source, lambda values: values.get("gpu-0/xid"))["gpu-0/xid"] == 48.0
    assert source.read(time.monotonic() + 3600) == {"gpu-0/xid": 48.0}


def test_closing_ends_the_tool(gpu_source):
    source = gpu_source("time.sleep(600)", 0)
    source.read(time.monotonic())
    pid = source._tool.pid
    source.close()
    source.close()
    assert not Path(f"/proc/{pid}").exists()
