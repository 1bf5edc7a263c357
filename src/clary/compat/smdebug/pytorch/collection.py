"""Collections of tensors, under the name of smdebug's own module."""

from clary.train.debugger.collection import Collection, CollectionKeys, CollectionManager

__all__ = ["Collection", "CollectionKeys", "CollectionManager"]
