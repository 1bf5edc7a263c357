"""Reports losses without changes to the program: wraps torch's loss functions, which its loss modules call.

Tensors of a loss function are named after its module, `CrossEntropyLoss_output_0`, so that a program may use either the
function or the module. Without listeners, or while a compiler traces, a wrapper only calls the function. Under a mode
of torch, such as a default device, or for a subclass of tensors, torch calls the wrapper again inside of its own call:
the outermost call is reported.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from torch.nn import functional

from clary.train.debugger.capture.surroundings import is_traced

MODULES_OF: Mapping[str, str] = {
    "binary_cross_entropy": "BCELoss",
    "binary_cross_entropy_with_logits": "BCEWithLogitsLoss",
    "cosine_embedding_loss": "CosineEmbeddingLoss",
    "cross_entropy": "CrossEntropyLoss",
    "ctc_loss": "CTCLoss",
    "gaussian_nll_loss": "GaussianNLLLoss",
    "hinge_embedding_loss": "HingeEmbeddingLoss",
    "huber_loss": "HuberLoss",
    "kl_div": "KLDivLoss",
    "l1_loss": "L1Loss",
    "margin_ranking_loss": "MarginRankingLoss",
    "mse_loss": "MSELoss",
    "multi_margin_loss": "MultiMarginLoss",
    "multilabel_margin_loss": "MultiLabelMarginLoss",
    "multilabel_soft_margin_loss": "MultiLabelSoftMarginLoss",
    "nll_loss": "NLLLoss",
    "poisson_nll_loss": "PoissonNLLLoss",
    "smooth_l1_loss": "SmoothL1Loss",
    "soft_margin_loss": "SoftMarginLoss",
    "triplet_margin_loss": "TripletMarginLoss",
    "triplet_margin_with_distance_loss": "TripletMarginWithDistanceLoss",
}
LOSS_MODULES = frozenset(MODULES_OF.values())
Listener = Callable[[str, tuple[Any, ...], Any], None]  # name of the module, arguments, result
_listeners: list[Listener] = []
_originals: dict[str, Callable[..., Any]] = {}
_running = threading.local()  # names: the modules whose functions this thread is in


def calls_loss_function(module: Any) -> bool:
    """Whether a module is one of torch's own that call a loss function, which reports the loss."""
    return module.__class__.__module__.startswith("torch.nn.") and module.__class__.__name__ in LOSS_MODULES


def listen(listener: Listener) -> None:
    """Call a listener with each loss from now on."""
    _listeners.append(listener)
    for name, module in MODULES_OF.items():
        if name not in _originals and hasattr(functional, name):
            _originals[name] = getattr(functional, name)
            setattr(functional, name, _wrapped(_originals[name], module))


def stop_listening(listener: Listener) -> None:
    """Stop calling a listener. Removing the last one restores torch."""
    if listener in _listeners:
        _listeners.remove(listener)
    if not _listeners:
        for name, original in _originals.items():
            if getattr(getattr(functional, name), "__wrapped__", None) is original:
                setattr(functional, name, original)
        _originals.clear()


def _wrapped(original: Callable[..., Any], module: str) -> Callable[..., Any]:
    begin, end, tell = (
        functools.partial(_begin, module),
        functools.partial(_end, module),
        functools.partial(_tell, module),
    )

    def call(*args: Any, **kwargs: Any) -> Any:
        if not begin():
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        finally:
            end()
        tell(args, kwargs, result)
        return result

    # torch.jit.script compiles the original's source, and looks up names in the globals of the function that it
    # receives.
    names = getattr(original, "__globals__", call.__globals__)
    return functools.wraps(original)(FunctionType(call.__code__, names, call.__name__, None, call.__closure__))


def _begin(module: str) -> bool:
    """Enter a call that is to be reported; False while a compiler traces, and for a call within itself."""
    if is_traced():
        return False
    names = _running.__dict__.setdefault("names", set())
    if module in names:
        return False
    names.add(module)
    return True


def _end(module: str) -> None:
    _running.names.discard(module)


def _tell(module: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
    for listener in tuple(_listeners):
        listener(module, (*args, *(kwargs.get(name) for name in ("input", "target") if name in kwargs)), result)
