"""Groups of tensors, chosen by expressions on their names, that are saved and read together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from clary.train.debugger.errors import ConfigurationError
from clary.train.debugger.reduction_config import ReductionConfig
from clary.train.debugger.save_config import SaveConfig

# The default collections. Most expressions follow smdebug's for torch.
DEFAULT_REGEXES: Mapping[str, tuple[str, ...]] = {
    "all": (".*",),
    "default": (),
    "weights": ("^(?!gradient|optimizer/).*weight",),
    "biases": ("^(?!gradient|optimizer/).*bias",),
    "gradients": ("^gradient",),
    "losses": ("[Ll]oss_(?!input).*output",),
    "metrics": ("^scalar/",),
    "sm_metrics": (),
    "optimizer_variables": ("^optimizer/",),
}
ALWAYS_SAVED = ("losses",)
_MAX_REGEX = 4096  # maximum number of characters, since expressions may come from untrusted files


class CollectionKeys:
    """Names of the default collections."""

    ALL = "all"
    DEFAULT = "default"
    WEIGHTS = "weights"
    BIASES = "biases"
    GRADIENTS = "gradients"
    LOSSES = "losses"
    METRICS = "metrics"
    SM_METRICS = "sm_metrics"
    OPTIMIZER_VARIABLES = "optimizer_variables"


class Collection:
    """Tensors whose names match one of the expressions, anywhere in the name, or were added by their names.

    Args:
        tensor_names: names of tensors to add.
        save_config, reduction_config: None for the hook's settings.

    Raises: ConfigurationError for an invalid expression.
    """

    def __init__(
        self,
        name: str,
        include_regex: Iterable[str] | str | None = None,
        tensor_names: Iterable[str] | None = None,
        reduction_config: ReductionConfig | None = None,
        save_config: SaveConfig | None = None,
        save_histogram: bool = True,
    ) -> None:
        self.name = name
        self.include_regex: list[str] = []
        self.added_names: set[str] = set(tensor_names or ())
        self._saved_names: set[str] = set()
        self.reduction_config = reduction_config
        self._save_config = save_config
        self._lent: SaveConfig | None = None  # what the hook lent, to tell whether the program has changed its copy
        self.save_histogram = save_histogram
        self._modules: list[tuple[Any, bool, bool]] = []
        self.include(include_regex)

    def __repr__(self) -> str:
        return (
            f"Collection({self.name!r}, include_regex={self.include_regex}, tensor_names={sorted(self.tensor_names)})"
        )

    @property
    def tensor_names(self) -> set[str]:
        """A copy of the names of its tensors: the added names, and the names of saved tensors that match it.

        `add_tensor_name` or an assignment changes the added names; a change of the copy does not.
        """
        return self.added_names | self._saved_names

    @tensor_names.setter
    def tensor_names(self, names: Iterable[str]) -> None:
        self.added_names = set(names)

    def note_saved(self, tensor_name: str) -> None:
        """Note the name of a tensor that matches and is saved; the name does not become a pattern."""
        self._saved_names.add(tensor_name)

    @property
    def save_config(self) -> SaveConfig | None:
        """The steps at which the collection is saved; None for the hook's setting."""
        return self._save_config

    @save_config.setter
    def save_config(self, given: Any) -> None:
        self._save_config = None if given is None else SaveConfig.parse(given)
        self._lent = None

    @property
    def own_save_config(self) -> SaveConfig | None:
        """The steps that were given for this collection; None while it follows the hook's setting."""
        return None if self._lent is not None and self._save_config == self._lent else self._save_config

    def lend_save_config(self, steps: SaveConfig) -> None:
        """Give a collection without steps of its own a copy of the hook's, which the program may change.

        It follows the hook's setting until then.
        """
        if self.own_save_config is None:
            self._save_config, self._lent = steps.changed_by({}), steps.changed_by({})

    def include(self, regex: Iterable[str] | str | None) -> None:
        """Add one or more expressions.

        Raises: ConfigurationError.
        """
        for one in [regex] if isinstance(regex, str) else list(regex or ()):
            if not isinstance(one, str) or len(one) > _MAX_REGEX:
                raise ConfigurationError(
                    f"collection {self.name}: include_regex must be text of up to {_MAX_REGEX} characters, got "
                    f"{str(one)[:80]!r}"
                )
            try:
                re.compile(one)
            except (re.error, OverflowError, RecursionError) as error:
                raise ConfigurationError(
                    f"collection {self.name}: include_regex {one!r} is no regular expression: {error}"
                ) from error
            self.include_regex.append(one)

    def add_tensor_name(self, tensor_name: str) -> None:
        """Add a tensor by its name."""
        self.added_names.add(tensor_name)

    def add_module_tensors(self, module: Any, inputs: bool = False, outputs: bool = True) -> None:
        """Add inputs or outputs of a module; the hook knows its name once the model is registered."""
        self._modules.append((module, inputs, outputs))

    def include_modules(self, names: Mapping[int, str]) -> None:
        """Turn the added modules into expressions; the hook calls it.

        Args:
            names: names of the model's modules, by `id`.
        """
        for module, inputs, outputs in self._modules:
            if id(module) in names:
                name = re.escape(names[id(module)])
                kinds = [kind for kind, wanted in (("input", inputs), ("output", outputs)) if wanted]
                self.include([f"^{name}_{kind}_" for kind in kinds])
        self._modules.clear()

    def matches(self, name: str, alias: str = "") -> bool:
        """Whether a tensor belongs to the collection.

        Args:
            alias: another name that expressions may match.
        """
        if name in self.added_names:
            return True
        return any(re.search(one, name) or (alias and re.search(one, alias)) for one in self.include_regex)


class CollectionManager:
    """The collections of a hook or a trial, by name, including the default collections."""

    def __init__(self) -> None:
        self.collections: dict[str, Collection] = {
            name: Collection(name, regexes) for name, regexes in DEFAULT_REGEXES.items()
        }

    def __iter__(self) -> Iterator[Collection]:
        return iter(self.collections.values())

    def get(self, name: str) -> Collection:
        """Return the collection with a name; make an empty collection if it does not exist."""
        return self.collections.setdefault(name, Collection(name))

    def add(self, collection: Collection) -> None:
        """Add a collection, or replace the collection with its name."""
        self.collections[collection.name] = collection

    def to_plain(self) -> dict[str, dict[str, list[str]]]:
        """Return the collections as plain data for trials."""
        return {one.name: {"include_regex": one.include_regex, "tensor_names": sorted(one.added_names)} for one in self}
