"""ResourceConfig.InstancePreferences: choice among several instance types of a job. Pure.

Where: CreateTrainingJob takes the first preference that can ever run here, and keeps it in the stored
request as SelectedInstanceType and SelectedInstanceCount; readers of a ResourceConfig call `settled`.
Source: ResourceConfig, InstancePreference (AWS API reference): exclusions, and the place of InstanceCount.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from clary.base.errors import WireError

EXCLUSIVE = ("InstanceType", "InstanceGroups", "InstancePlacementConfig")


def check(request: Mapping[str, Any]) -> None:
    """Refuse preferences combined with excluded members, repeated types, and a missing or doubled InstanceCount.

    Raises: WireError(ValidationException).
    """
    config = request["ResourceConfig"]
    preferences = config.get("InstancePreferences") or ()
    if not preferences:
        return
    beside = [member for member in EXCLUSIVE if config.get(member)]
    if request.get("EnableManagedSpotTraining"):
        beside.append("EnableManagedSpotTraining")
    if beside:
        raise _refusal(f"ResourceConfig.InstancePreferences excludes {beside[0]}: leave one of them out.")
    types = Counter(preference["InstanceType"] for preference in preferences)
    doubled = [name for name, count in types.items() if count > 1]
    if doubled:
        raise _refusal(f"An instance type stands once in InstancePreferences; {doubled[0]!r} stands twice.")
    counted = sum(bool(preference.get("InstanceCount")) for preference in preferences)
    if counted != (0 if config.get("InstanceCount") else len(preferences)):
        raise _refusal(
            "InstancePreferences needs InstanceCount in ResourceConfig, or in every preference, and not in both."
        )


def candidates(request: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the request with each of its preferences selected, in order; unchanged without preferences."""
    config = request["ResourceConfig"]
    preferences = config.get("InstancePreferences") or ()
    if not preferences:
        yield request
    for preference in preferences:
        selected = {
            "SelectedInstanceType": preference["InstanceType"],
            "SelectedInstanceCount": preference.get("InstanceCount") or config["InstanceCount"],
        }
        yield {**request, "ResourceConfig": {**config, **selected}}


def settled(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a ResourceConfig with InstanceType and InstanceCount: of the selected preference, else of the first."""
    preferences = config.get("InstancePreferences")
    if not preferences:
        return config
    first = preferences[0]
    left = ("InstancePreferences", "SelectedInstanceType", "SelectedInstanceCount")
    return {
        **{name: value for name, value in config.items() if name not in left},
        "InstanceType": config.get("SelectedInstanceType") or first["InstanceType"],
        "InstanceCount": (
            config.get("SelectedInstanceCount") or first.get("InstanceCount") or config.get("InstanceCount", 1)
        ),
    }


def _refusal(sentence: str) -> WireError:
    return WireError("ValidationException", sentence)
