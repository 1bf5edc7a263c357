"""The training step in a log line, so that values found in the line can be drawn over steps. Pure.

Where: `log_metrics` calls it for lines in which agents found metrics.

Lines may be hostile and long: only their beginning is searched, with patterns that take linear time.
"""

from __future__ import annotations

import re

MOST_CHARACTERS = 4096  # agents search the same number of characters for metrics
_BETWEEN = r"['\"]?[ \t]{0,3}[:=#]?[ \t]{0,3}\[?[ \t]{0,3}"
_GLOBAL = re.compile(rf"(?<![a-z_])global[_ -]?step{_BETWEEN}(\d{{1,15}})(?![\d.])", re.IGNORECASE)
_STEP = re.compile(rf"(?<![a-z_])(?:train[_ ])?(?:step|iteration|iter){_BETWEEN}(\d{{1,15}})(?![\d.])", re.IGNORECASE)
_EPOCH = re.compile(r"(?<![a-z])epoch", re.IGNORECASE)


def step_of(line: str) -> int | None:
    """Return the step named in a line, or None.

    If the line also names an epoch, only a global step counts: most other step counters restart in each epoch.
    """
    begin = line[:MOST_CHARACTERS]
    found = _GLOBAL.search(begin) or (None if _EPOCH.search(begin) else _STEP.search(begin))
    return None if found is None else int(found[1])
