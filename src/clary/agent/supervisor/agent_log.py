"""The agent's own log on its host: `agent.log` in the host's folder, for administrators of the machine."""

from __future__ import annotations

import logging
from pathlib import Path

AGENT_LOG = "agent.log"
_FORMAT = "%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s"


def open_agent_log(host_folder: Path) -> logging.Handler:
    """Write the agent's log records to `agent.log` in `host_folder` until `close_agent_log`; create the folder."""
    host_folder.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(host_folder / AGENT_LOG, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter(_FORMAT))
    handler.setLevel(logging.INFO)
    own = logging.getLogger("clary.agent")
    own.setLevel(logging.INFO)
    own.addHandler(handler)
    return handler


def close_agent_log(handler: logging.Handler) -> None:
    """Undo `open_agent_log`."""
    logging.getLogger("clary.agent").removeHandler(handler)
    handler.close()
