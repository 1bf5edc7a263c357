"""Prevents Keras 3 from compiling models by XLA, which cannot communicate with other ranks."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

_LEGACY = "TF_USE_LEGACY_KERAS"


def keep_from_xla() -> None:
    """Make Keras 3 run models of this process by TensorFlow's own executor.

    By default, the `compile` method of Keras models uses XLA. For a model with `jit_compile=True`, Keras warns that it
    cannot be compiled.
    """
    if os.environ.get(_LEGACY) == "1" or importlib.util.find_spec("keras") is None:
        return
    import keras

    trainer: Any = sys.modules.get("keras.src.trainers.trainer")
    if not keras.__version__.startswith("2.") and hasattr(trainer, "model_supports_jit"):
        trainer.model_supports_jit = _supports_no_jit


def _supports_no_jit(model: Any) -> bool:
    return False
