"""Reductions: numbers that are saved for a tensor in place of all its values.

A reduction has one name wherever it is stored or read: `mean`, `abs_mean` for absolute values, and the norms `l1` and
`abs_l2`. Deviations are those of a population (divided by n), not of a sample, as in numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from clary.train.debugger.errors import ConfigurationError

REDUCTIONS = ("min", "max", "mean", "std", "variance", "sum", "prod")
NORMS = ("l1", "l2")
ALL = frozenset(prefix + name for prefix in ("", "abs_") for name in REDUCTIONS + NORMS)


@dataclass(kw_only=True)
class ReductionConfig:
    """The values that are saved for a tensor.

    Args:
        reductions: names of REDUCTIONS; `abs_reductions` are the same reductions of absolute values.
        norms: names of NORMS; `abs_norms` are the norms of absolute values, which equal the plain norms.
        save_raw_tensor: whether to save also all values.
        save_shape: accepted for smdebug's sake; the shape is saved in any case.

    Raises: ConfigurationError.
    """

    reductions: Iterable[str] | None = ()
    abs_reductions: Iterable[str] | None = ()
    norms: Iterable[str] | None = ()
    abs_norms: Iterable[str] | None = ()
    save_raw_tensor: bool = False
    save_shape: bool = False

    def __post_init__(self) -> None:
        for field, allowed in (
            ("reductions", REDUCTIONS),
            ("abs_reductions", REDUCTIONS),
            ("norms", NORMS),
            ("abs_norms", NORMS),
        ):
            names = list(getattr(self, field) or ())
            setattr(self, field, names)
            for name in names:
                if name not in allowed:
                    raise ConfigurationError(f"{field} has {name!r}; it may have {', '.join(allowed)}")
        for field in ("save_raw_tensor", "save_shape"):
            setattr(self, field, as_bool(field, getattr(self, field)))

    @property
    def names(self) -> frozenset[str]:
        """The names under which the reductions are stored."""
        plain = (*(self.reductions or ()), *(self.norms or ()))
        absolute = (*(self.abs_reductions or ()), *(self.abs_norms or ()))
        return frozenset(plain) | {f"abs_{name}" for name in absolute}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> ReductionConfig | None:
        """Parse `reductions`, `save_raw_tensor` and `save_shape` of a job's configuration; None if all are missing.

        Raises: ConfigurationError.
        """
        if not {"reductions", "save_raw_tensor", "save_shape"} & set(parameters):
            return None
        lists: dict[str, list[str]] = {"reductions": [], "abs_reductions": [], "norms": [], "abs_norms": []}
        for word in str(parameters.get("reductions") or "").split(","):
            name = word.strip()
            if not name:
                continue
            prefix = "abs_" if name.startswith("abs_") else ""
            bare = name.removeprefix("abs_").removesuffix("_norm")
            if bare not in REDUCTIONS + NORMS:
                raise ConfigurationError(f"reductions has {name!r}; it may have {', '.join(sorted(ALL))}")
            lists[prefix + ("norms" if bare in NORMS else "reductions")].append(bare)
        raw, shape = parameters.get("save_raw_tensor", False), parameters.get("save_shape", False)
        return cls(**lists, save_raw_tensor=raw, save_shape=shape)


def as_bool(name: str, value: Any) -> bool:
    """Parse a yes or no in a request's spelling.

    Raises: ConfigurationError.
    """
    words = {True: True, False: False, "true": True, "false": False, "True": True, "False": False, None: False}
    try:
        return words[value]
    except (KeyError, TypeError):
        raise ConfigurationError(f"{name} is {value!r}; expected true or false") from None
