"""Parameters that DebugHookConfig may have for a hook and its collections: one list for service and program.

Where: `control.jobs.rules.debug_request` refuses a request with other parameters; `train.debugger.configuration` reads
the parameters in a job.
Source: smdebug docs/api.md, "Hook" and "Collection".
"""

from __future__ import annotations

from collections.abc import Mapping

_PHASES = ("", "train.", "eval.", "predict.", "global.")
_COUNTS = ("save_interval", "start_step", "end_step")
COUNTS = frozenset(phase + name for phase in _PHASES for name in _COUNTS)
LISTS_OF_COUNTS = frozenset(f"{phase}save_steps" for phase in _PHASES)
_OF_BOTH = COUNTS | LISTS_OF_COUNTS | {"include_regex", "reductions", "save_raw_tensor", "save_shape"}
OF_COLLECTIONS = _OF_BOTH | {"save_histogram"}
OF_HOOKS = _OF_BOTH | {"save_all", "include_workers", "dry_run", "export_tensorboard", "tensorboard_dir"}


def parameter_problem(parameters: Mapping[str, str], known: frozenset[str]) -> str:
    """Return why a hook would refuse the first unacceptable parameter; empty if all are acceptable."""
    for name, value in parameters.items():
        if name not in known:
            return f"has {name!r}; it may have {', '.join(sorted(known))}"
        words = value.split(",") if name in LISTS_OF_COUNTS else [value] if name in COUNTS else []
        bad = next((word for word in words if word.strip() and not word.strip().isdecimal()), None)
        if bad is not None:
            return (
                f"has {name}={value!r}; expected {'whole numbers with commas' if len(words) > 1 else 'a whole number'}"
            )
        if name.endswith("save_interval") and value.strip().isdecimal() and int(value) < 1:
            return f"has {name}={value!r}; expected 1 or more"
        if name == "include_workers" and value not in ("one", "all"):
            return f"has include_workers={value!r}; expected 'one' or 'all'"
    return ""
