"""Horovod for Keras by its older name, `import horovod.keras as hvd`; all of it is in `horovod.tensorflow.keras`."""

from horovod.keras import callbacks, elastic
from horovod.tensorflow.keras import *  # noqa: F403 - the same names
from horovod.tensorflow.keras import __all__ as _names

__all__ = [*_names, "callbacks", "elastic"]
