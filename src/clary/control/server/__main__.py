"""Run the service in the foreground: `python -m clary.control.server`."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence

from clary.base.errors import ClaryError
from clary.control.process_limits import raise_limits
from clary.control.server.edge.handed_sockets import HandedSockets
from clary.control.server.edge.listener import new_event_loop
from clary.control.server.service import run_service
from clary.control.server.succession import HAND_OVER, SUPERVISED, Leave, check_start, predecessor_of, take_turn
from clary.control.settings import Settings, load_settings
from clary.control.state_folder import NEW_DATABASE, NEW_KEYS, StateFolder


def main() -> int:
    """Run the service until SIGTERM or SIGINT, which end its jobs, or HAND_OVER, which leaves them running."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    raise_limits()
    try:
        settings = load_settings()
        options = sys.argv[1:]
        handed = HandedSockets()
        if (predecessor := predecessor_of(options)) is not None:
            check_start(settings)
            handed = take_turn(predecessor, StateFolder(settings.home_folder))
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_run_until_signal(settings, options, handed))
    except ClaryError as error:
        print(f"clary: {error.message}", file=sys.stderr)
        return 1
    return 0


async def _run_until_signal(settings: Settings, options: Sequence[str], handed: HandedSockets) -> None:
    leave = Leave()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave.set)
    loop.add_signal_handler(HAND_OVER, leave.hand_over)
    await run_service(
        settings,
        leave=leave,
        begins_anew=NEW_DATABASE in options,
        makes_keys=NEW_KEYS in options,
        is_supervised=SUPERVISED in options,
        handed=handed,
    )


if __name__ == "__main__":
    sys.exit(main())
