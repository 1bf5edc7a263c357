"""Processes of a running service."""

from __future__ import annotations

import json


def service_pid(service):
    return json.loads((service.home / "run" / "service.json").read_text())["pid"]
