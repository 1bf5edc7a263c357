"""Horovod for Keras under its older name, `import horovod.keras as hvd`; the code is in `horovod.tensorflow.keras`."""

from horovod.keras import callbacks, elastic
from horovod.tensorflow.keras import *  # noqa: F403 - the same names
from horovod.tensorflow.keras import __all__ as _names

__all__ = [*_names, "callbacks", "elastic"]
