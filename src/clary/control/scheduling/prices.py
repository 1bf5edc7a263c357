"""Prices of instance types, from files: Clary contains approximate prices, which a user's own file overrides.

Where: billing and the ledger look up the price of a job's hosts; the service reads the files once, when it starts.
No price is fetched: `prices.json` names the source and month of its figures; docs/spot.md describes the format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeGuard

from clary.base.errors import ContractError, Fault
from clary.control.analysis.billing import JobPrice
from clary.control.jobs.job_request import JobRequest

BUNDLED = "prices.json"
MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_USD_PER_HOUR = 1e6  # a larger price is a mistake
_MEMBERS = ("about", "as_of", "region", "default_spot_fraction", "without_price", "types")
_TYPE_MEMBERS = ("usd_per_hour", "spot_fraction", "is_estimated")


@dataclass(frozen=True, kw_only=True)
class TypePrice:
    """Price of one instance of a type for an hour."""

    usd_per_hour: float  # price of capacity on demand
    spot_fraction: float  # ratio of the spot price to the price on demand
    is_estimated: bool = False
    origin: str = ""  # name, region and month of the price file


@dataclass(frozen=True, kw_only=True)
class PriceList:
    """Prices by type."""

    types: Mapping[str, TypePrice]
    default_spot_fraction: float  # ratio of the spot price to the on-demand price, for jobs with a type without a price
    without_price: tuple[str, ...] = ()  # types of the catalogue for which no price was available

    def of_job(self, request: JobRequest) -> JobPrice:
        """Return the cost of all hosts of a job; without a sum if a type has no price: a partial sum would mislead."""
        groups = request.instance_groups
        missing = sorted({group.instance_type for group in groups} - set(self.types))
        if missing:
            notes = tuple(
                f"no price is known for {name}: name one in a file of setting prices_file" for name in missing
            )
            return JobPrice(usd_per_hour=None, spot_fraction=self.default_spot_fraction, notes=notes)
        priced = [(group.instance_count, self.types[group.instance_type]) for group in groups]
        usd = sum(count * price.usd_per_hour for count, price in priced)
        spot_usd = sum(count * price.usd_per_hour * price.spot_fraction for count, price in priced)
        estimated = sorted({group.instance_type for group in groups if self.types[group.instance_type].is_estimated})
        return JobPrice(
            usd_per_hour=usd,
            spot_fraction=spot_usd / usd if usd else self.default_spot_fraction,
            source=" and ".join(dict.fromkeys(price.origin for _, price in priced)),
            notes=tuple(f"the price of {name} is an estimate" for name in estimated),
        )


def load_prices(path: str = "") -> PriceList:
    """Return the prices contained in Clary, overridden by the prices of a user's own file.

    Args:
        path: setting `prices_file`; empty without a file.
    Raises: ContractError naming the file, and the line or member that is wrong.
    """
    bundled = _bundled()
    if not path:
        return bundled
    own_path = Path(path).expanduser()
    try:
        with own_path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _error(f"{own_path}: cannot be read: {error.strerror} (setting prices_file)") from error
    if len(data) > MAX_FILE_BYTES:
        raise _error(f"{own_path}: expected at most {MAX_FILE_BYTES} bytes of prices, got more")
    own = parse_prices(data, source=str(own_path), default_spot_fraction=bundled.default_spot_fraction)
    return PriceList(types={**bundled.types, **own.types}, default_spot_fraction=own.default_spot_fraction)


def parse_prices(data: bytes, *, source: str, default_spot_fraction: float | None = None) -> PriceList:
    """Parse the prices in a file's content.

    Args:
        data: content of the file, as JSON text.
        source: name of the file in errors.
        default_spot_fraction: used if the file has none; None requires it in the file.
    Raises: ContractError naming the source, and the line or member that is wrong.
    """
    try:
        document = json.loads(data.decode("utf-8"), object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise _error(f"{source}, line {error.lineno}, column {error.colno}: not valid JSON: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise _error(f"{source}: expected UTF-8, got byte {error.object[error.start]:#04x} at {error.start}") from error
    except (ValueError, RecursionError) as error:  # a repeated name, too long a number, too deep nesting
        raise _error(f"{source}: not valid JSON: {str(error)[:200]}") from error
    members = _table(document, source, "the file")
    _require_known(members, _MEMBERS, source, "the file")
    fraction = _fraction(members.get("default_spot_fraction", default_spot_fraction), source, "default_spot_fraction")
    where = [str(members[name])[:40] for name in ("region", "as_of") if members.get(name)]
    origin = ", ".join([Path(source).name, *where])
    types = {
        name: _type_price(item, source, f'types."{name}"', default_fraction=fraction, origin=origin)
        for name, item in _table(members.get("types"), source, "types").items()
    }
    without = members.get("without_price", [])
    if not isinstance(without, list) or not all(isinstance(name, str) for name in without):
        raise _error(f"{source}: without_price: expected a list of instance types, got {_shown(without)}")
    return PriceList(types=types, default_spot_fraction=fraction, without_price=tuple(without))


@cache
def _bundled() -> PriceList:
    data = resources.files("clary.control.scheduling").joinpath(BUNDLED).read_bytes()
    return parse_prices(data, source=BUNDLED)


def _type_price(item: Any, source: str, where: str, *, default_fraction: float, origin: str) -> TypePrice:
    members = _table(item, source, where)
    _require_known(members, _TYPE_MEMBERS, source, where)
    usd = members.get("usd_per_hour")
    if not _is_number(usd) or not 0 < usd <= MAX_USD_PER_HOUR:
        raise _error(
            f"{source}: {where}.usd_per_hour: expected USD above 0, at most {MAX_USD_PER_HOUR:g}, got {_shown(usd)}"
        )
    is_estimated = members.get("is_estimated", False)
    if not isinstance(is_estimated, bool):
        raise _error(f"{source}: {where}.is_estimated: expected true or false, got {_shown(is_estimated)}")
    return TypePrice(
        usd_per_hour=float(usd),
        spot_fraction=_fraction(members.get("spot_fraction", default_fraction), source, f"{where}.spot_fraction"),
        is_estimated=is_estimated,
        origin=origin,
    )


def _fraction(value: Any, source: str, where: str) -> float:
    if not _is_number(value) or not 0 < value <= 1:
        raise _error(f"{source}: {where}: expected a number above 0, at most 1, got {_shown(value)}")
    return float(value)


def _table(value: Any, source: str, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _error(f"{source}: {where}: expected an object, got {_shown(value)}")
    return value


def _require_known(members: Mapping[str, Any], known: tuple[str, ...], source: str, where: str) -> None:
    for name in members:
        if name not in known:
            raise _error(f"{source}: {where}: unknown member {name[:40]!r}; known are {', '.join(known)}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise ValueError(f"{name[:60]!r} appears twice")
        members[name] = value
    return members


def _is_number(value: Any) -> TypeGuard[int | float]:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and (isinstance(value, int) or math.isfinite(value))
    )


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return "nothing" if value is None else repr(value)[:60]


def _error(message: str) -> ContractError:
    return ContractError(message, fault=Fault.USER)
