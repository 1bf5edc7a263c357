"""The training's step in a log line, so that values found there can be drawn over steps. Pure.

Where: `reconcile.gateways.agent_gateway` asks for lines in which agents found metrics.

Lines are hostile and long: only their beginning is searched, by patterns that take linear time.
"""

from __future__ import annotations

import re

MOST_CHARACTERS = 4096  # agents search as many characters for metrics
_BETWEEN = r"['\"]?[ \t]{0,3}[:=#]?[ \t]{0,3}\[?[ \t]{0,3}"
_GLOBAL = re.compile(rf"(?<![a-z_])global[_ -]?step{_BETWEEN}(\d{{1,15}})(?![\d.])", re.IGNORECASE)
_STEP = re.compile(rf"(?<![a-z_])(?:train[_ ])?(?:step|iteration|iter){_BETWEEN}(\d{{1,15}})(?![\d.])", re.IGNORECASE)
_EPOCH = re.compile(r"(?<![a-z])epoch", re.IGNORECASE)


def step_of(line: str) -> int | None:
    """Return the step that a line names, or None.

    If the line also names an epoch, only a global step counts: most other step counters restart in each epoch.
    """
    begin = line[:MOST_CHARACTERS]
    found = _GLOBAL.search(begin) or (None if _EPOCH.search(begin) else _STEP.search(begin))
    return None if found is None else int(found[1])
