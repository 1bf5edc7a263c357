"""Run the service in the foreground: `python -m clary.control.server`."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from clary.base.errors import ClaryError
from clary.control.server.edge.listener import new_event_loop
from clary.control.server.service import run_service
from clary.control.settings import Settings, load_settings
from clary.control.state_folder import NEW_DATABASE, NEW_KEYS


def main() -> int:
    """Run the service until SIGTERM or SIGINT."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        settings = load_settings()
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            options = sys.argv[1:]
            runner.run(_run_until_signal(settings, begins_anew=NEW_DATABASE in options, makes_keys=NEW_KEYS in options))
    except ClaryError as error:
        print(f"clary: {error.message}", file=sys.stderr)
        return 1
    return 0


async def _run_until_signal(settings: Settings, *, begins_anew: bool, makes_keys: bool) -> None:
    leave = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave.set)
    await run_service(settings, leave=leave, begins_anew=begins_anew, makes_keys=makes_keys)


if __name__ == "__main__":
    sys.exit(main())
