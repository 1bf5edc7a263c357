"""Decides which values of a tensor are saved at a step, given collections, phase and step."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from clary.train.debugger.collection import ALWAYS_SAVED, Collection, CollectionKeys, CollectionManager
from clary.train.debugger.modes import ModeKeys
from clary.train.debugger.reduction_config import ReductionConfig
from clary.train.debugger.save_config import SaveConfig

# Collections of parameters, optimizers and losses only, which need no inputs and outputs of modules.
_WITHOUT_MODULES = {
    CollectionKeys.WEIGHTS,
    CollectionKeys.BIASES,
    CollectionKeys.GRADIENTS,
    CollectionKeys.LOSSES,
    CollectionKeys.METRICS,
    CollectionKeys.SM_METRICS,
    CollectionKeys.OPTIMIZER_VARIABLES,
}
_OF_MODULE = re.compile(r"_(?:in|out)put_\d+$")  # the end of the names that `StepCapture.see_module` gives
_ONLY_IN_TRAINING = {CollectionKeys.GRADIENTS, CollectionKeys.OPTIMIZER_VARIABLES}


@dataclass(frozen=True)
class Wanted:
    """The values of a tensor to save: all of them, reductions, or both."""

    raw: bool
    reductions: tuple[str, ...]


class Chooser:
    """Decides for one hook; it caches decisions, so collections must not change after its creation.

    Collections are told the names of the tensors that are saved.

    Args:
        included: names of collections to save; `losses` is always saved.
    """

    def __init__(
        self,
        manager: CollectionManager,
        included: Iterable[str],
        *,
        save_all: bool,
        save_config: SaveConfig,
        reduction_config: ReductionConfig | None,
    ) -> None:
        names = {*included, *ALWAYS_SAVED}
        is_all = save_all or CollectionKeys.ALL in names
        self.collections = [one for one in manager if is_all or one.name in names]
        self._save_config = save_config
        self._reduction_config = reduction_config
        self._answers: dict[tuple[frozenset[str], str], Wanted | None] = {}

    def at(self, mode: ModeKeys, mode_step: int) -> list[Collection]:
        """Return the collections that are saved at a step."""
        return [
            one
            for one in self.collections
            if (one.own_save_config or self._save_config).should_save_step(mode, mode_step)
            and not (mode in (ModeKeys.EVAL, ModeKeys.PREDICT) and one.name in _ONLY_IN_TRAINING)
        ]

    def wants(self, collections: list[Collection], name: str, alias: str = "") -> Wanted | None:
        """Return the values of a tensor to save at a step with these collections, or None.

        Args:
            collections: collections from `at` for the step.
            name: name of the tensor.
            alias: another name that expressions match; empty without an alias.
        """
        key = (frozenset(one.name for one in collections), name)
        if key not in self._answers:
            self._answers[key] = self._answer(collections, name, alias)
        return self._answers[key]

    def _answer(self, collections: list[Collection], name: str, alias: str) -> Wanted | None:
        matching = [one for one in collections if one.matches(name, alias)]
        if not matching:
            return None
        for one in matching:
            one.note_saved(name)
        configs = [one.reduction_config or self._reduction_config for one in matching]
        raw = any(config is None or config.save_raw_tensor for config in configs)
        reductions = sorted({name for config in configs if config is not None for name in config.names})
        return Wanted(raw, tuple(reductions))


def needs_modules(collections: Iterable[Collection]) -> bool:
    """Whether inputs or outputs of modules may be among the saved tensors."""
    return any(
        (_is_changed(one) if one.name in _WITHOUT_MODULES else one.include_regex)
        or any(_OF_MODULE.search(name) for name in one.added_names)
        for one in collections
    )


def _is_changed(collection: Collection) -> bool:
    return len(collection.include_regex) > len(CollectionManager().get(collection.name).include_regex)
