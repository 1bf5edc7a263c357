"""The options of a hook, from its arguments, a job's configuration, and later changes by the program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from clary.train.debugger.capture.choosing import Chooser
from clary.train.debugger.collection import Collection, CollectionKeys, CollectionManager
from clary.train.debugger.configuration import DEFAULT_FOLDER, check_workers
from clary.train.debugger.errors import ConfigurationError
from clary.train.debugger.modes import ModeKeys
from clary.train.debugger.reduction_config import ReductionConfig
from clary.train.debugger.save_config import SaveConfig


class HookOptions:
    """The folder, collections, steps and workers to save. Hook derives from it, so that programs can change them.

    Raises: ConfigurationError.
    """

    def __init__(
        self,
        *,
        out_dir: str | Path | None,
        dry_run: bool,
        reduction_config: ReductionConfig | None,
        save_config: SaveConfig | Any,
        include_regex: Iterable[str] | str | None,
        include_collections: Iterable[str] | str | None,
        save_all: bool,
        include_workers: str,
    ) -> None:
        self.out_dir = str(out_dir or DEFAULT_FOLDER)
        self.save_config = save_config
        self.reduction_config = reduction_config
        self.collection_manager = CollectionManager()
        names = [include_collections] if isinstance(include_collections, str) else list(include_collections or ())
        self.include_collections = set(names)
        if include_regex:
            self.collection_manager.get(CollectionKeys.DEFAULT).include(include_regex)
            self.include_collections.add(CollectionKeys.DEFAULT)
        self.save_all, self.dry_run = save_all, dry_run
        self.include_workers = check_workers(include_workers)
        self.mode = ModeKeys.GLOBAL
        self.last_saved_step: int | None = None
        self.is_automatic = False  # whether the job made the hook, not the program
        self.has_changed = True  # whether choices may have changed since `make_chooser`

    @property
    def save_config(self) -> SaveConfig:
        """The steps of collections without steps of their own."""
        return self._save_config

    @save_config.setter
    def save_config(self, given: Any) -> None:
        self._save_config = SaveConfig.parse(given)
        self.has_changed = True

    def get_collection(self, name: str) -> Collection:
        """Return the collection with a name; if it does not exist, make a collection that is saved from now on."""
        if name not in self.collection_manager.collections:
            self.include_collections.add(name)
        self.has_changed = True
        collection = self.collection_manager.get(name)
        collection.lend_save_config(self.save_config)
        return collection

    def get_collections(self) -> dict[str, Collection]:
        """Return all collections by name."""
        self.has_changed = True
        for collection in self.collection_manager:
            collection.lend_save_config(self.save_config)
        return self.collection_manager.collections

    def add_collection(self, collection: Collection) -> None:
        """Add or replace a collection, and save it from now on. Raises: ConfigurationError."""
        if not isinstance(collection, Collection):
            raise ConfigurationError(f"add_collection was given a {type(collection).__name__}; expected a Collection")
        self.collection_manager.add(collection)
        self.include_collections.add(collection.name)
        self.has_changed = True

    def set_mode(self, mode: ModeKeys) -> None:
        """Count the next steps as steps of a phase. Raises: ConfigurationError."""
        if not isinstance(mode, ModeKeys):
            raise ConfigurationError(f"mode is {mode!r}; expected one of {', '.join(map(str, ModeKeys))}")
        self.mode = mode

    def add_tensor_name(self, tensor_name: str, collections: Iterable[str]) -> bool:
        """Add a tensor to collections, which are saved from now on; return whether it was new to any of them."""
        new = [one for one in collections if tensor_name not in self.collection_manager.get(one).added_names]
        for one in new:
            self.include_collections.add(one)
            self.collection_manager.get(one).add_tensor_name(tensor_name)
            self.has_changed = True
        return bool(new)

    def make_chooser(self, module_names: Mapping[int, str]) -> Chooser:
        """Return a chooser for the present options.

        Args:
            module_names: names of the model's modules, by `id`; collections may contain such modules.
        """
        for collection in self.collection_manager:
            collection.include_modules(module_names)
        self.has_changed = False
        return Chooser(
            self.collection_manager,
            self.include_collections,
            save_all=self.save_all,
            save_config=self.save_config,
            reduction_config=self.reduction_config,
        )
