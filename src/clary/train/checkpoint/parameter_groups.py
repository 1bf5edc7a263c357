"""Names of the parameters in each group of an optimizer, saved so that options and moments reach the same parameters.

    =optimizer/parameters/0a1b2c...     by group, the names of its parameters; the end is a digest of the names

Ranks with different parameters save a list each, since the digests differ; equal lists have one name, and are saved
once. Checkpoints of earlier releases have no lists.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

from clary.train.checkpoint.plans import VALUE_MARK

Groups = Sequence[Sequence[str]]  # by group, the names of its parameters


def list_name(key: str, groups: Groups) -> str:
    """Return the name under which the list of an optimizer's groups is saved."""
    return f"{_prefix(key)}{hashlib.sha256(json.dumps(groups).encode()).hexdigest()[:16]}"


def saved_list_names(key: str, names: Iterable[str]) -> list[str]:
    """Return those of a checkpoint's names that are lists of an optimizer's groups."""
    return [name for name in names if name.startswith(_prefix(key))]


def check_groups(key: str, own: Groups, saved: Sequence[Groups]) -> None:
    """Check that each parameter of an optimizer was saved in the same group, and that every saved one is there.

    The order within a group is free. An optimizer may join the parameters of several ranks.

    Args:
        key: the optimizer's name in the state.
        own: groups of the optimizer that is being restored.
        saved: all lists in the checkpoint.

    Raises: ValueError naming the optimizer, a parameter, and its groups.
    """
    if any(len(groups) != len(own) for groups in saved):
        raise ValueError(f"{key} has {len(own)} groups of parameters; {len(saved[0])} were saved")
    group_of = {name: at for groups in saved for at, group in enumerate(groups) for name in group}
    own_names = [name for group in own for name in group]
    unknown = [name for name in own_names if name not in group_of]
    if unknown:
        raise unknown_parameters(key, unknown, sorted(group_of.keys() - set(own_names)))
    for at, group in enumerate(own):
        for name in group:
            if group_of[name] != at:
                raise ValueError(
                    f"{key} has {name} in group {at} of parameters, but it was saved in group {group_of[name]}: put "
                    "each parameter into the group in which it was saved, or its options would reach others"
                )
    lacking = min((sorted({name for group in groups for name in group} - set(own_names)) for groups in saved), key=len)
    if lacking:
        raise ValueError(
            f"{key} is not the optimizer that was saved: it lacks {len(lacking)} of the saved parameters ({lacking[0]})"
        )


def unknown_parameters(key: str, unknown: Sequence[str], left: Sequence[str]) -> ValueError:
    """Return the error of an optimizer with parameters that the checkpoint does not know.

    Args:
        key: the optimizer's name in the state.
        unknown: names of its parameters that were not saved.
        left: names of saved parameters that it does not have.
    """
    instead = f", and has {len(left)} that it does not know ({left[0]})" if left else ""
    return ValueError(
        f"{key} is not the optimizer that was saved: the checkpoint lacks {len(unknown)} of its parameters "
        f"({unknown[0]}){instead}. Restore an optimizer together with the models that it was saved with, in one state"
    )


def _prefix(key: str) -> str:
    return f"{VALUE_MARK}{key}/parameters/"
