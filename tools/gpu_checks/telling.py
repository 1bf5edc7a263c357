"""How a check tells its result to `running`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tools.gpu_checks.running import MARK


def tell(status: str, words: str = "", numbers: Mapping[str, Any] | None = None) -> None:
    """Print a check's result; the last one counts."""
    print(MARK + json.dumps({"status": status, "words": words, "numbers": dict(numbers or {})}), flush=True)
