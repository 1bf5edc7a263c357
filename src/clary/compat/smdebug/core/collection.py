"""Collections of tensors, and the names of the collections that every hook has."""

from clary.train.debugger.collection import Collection, CollectionKeys

__all__ = ["Collection", "CollectionKeys"]
