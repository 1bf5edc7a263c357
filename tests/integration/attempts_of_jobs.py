"""Hosts and statuses of a running job's attempts."""

from __future__ import annotations

import json
import os
import time

LIMIT_S = 90


def wait_for_line(service, name, text):
    """Wait until a job has printed a line with this text; return its log."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        said = service.clary("logs", name, check=False).stdout
        if text in said:
            return said
        time.sleep(0.3)
    raise AssertionError(f"{name} has not printed {text!r} within {LIMIT_S} s:\n{said[-3000:]}")


def statuses_of(aws, name):
    facts = aws.sagemaker.describe_training_job(TrainingJobName=name)
    return [row["Status"] for row in facts["SecondaryStatusTransitions"]]


def agent_of(service, name, host):
    """Return the process of a host's agent; for a job with retries this is the agent of its pool."""
    for path in sorted((service.home / "jobs" / name).glob("*/engine.json")):
        name = json.loads(path.read_text()).get("pool") or name
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if b"clary.agent" in words and name.encode() in b" ".join(words) and host.encode() in words:
            return int(entry)
    raise AssertionError(f"no agent of {name}/{host} runs")
