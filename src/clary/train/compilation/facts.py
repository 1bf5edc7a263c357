"""Reads the facts of a module that the policies judge."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import nn

from clary.train.compilation.policies import CompilerFacts, ModelFacts, PrecisionFacts
from clary.train.compilation.wishes import Wishes

# Wrappers whose inner `module` is compiled instead of the wrapper: DDP cuts its graph by buckets.
_TRANSPARENT = ("DistributedDataParallel",)
_WRAPPERS = ("DataParallel", "DeepSpeedEngine", "DistributedModel", "FullyShardedDataParallel")


def target_of(module: nn.Module) -> nn.Module:
    """Return the module to compile for an outermost module: the module itself, or the module inside its wrapper."""
    inner = getattr(module, "module", None)
    return target_of(inner) if _name(module) in _TRANSPARENT and isinstance(inner, nn.Module) else module


def model_facts(module: nn.Module) -> ModelFacts:
    """Return the facts of the outermost module of a call."""
    target = target_of(module)
    kind = next((_name_of(base) for base in type(target).__mro__ if _name_of(base) in _WRAPPERS), "")
    inner = getattr(target, "module", target) if kind else target
    trainable = [parameter for parameter in target.parameters() if parameter.requires_grad]
    return ModelFacts(
        name=_name(inner if isinstance(inner, nn.Module) else target),
        wrapper=kind,
        shows_parameters=kind == "FullyShardedDataParallel" and bool(getattr(target, "_use_orig_params", False)),
        num_trainable=len(trainable),
        compiled_by_program=any(_is_compiled(part) for part in module.modules()),
        is_scripted=any(isinstance(part, torch.jit.ScriptModule) for part in target.modules()),
        device_types=frozenset(parameter.device.type for parameter in target.parameters()),
        dtypes=frozenset(str(parameter.dtype).removeprefix("torch.") for parameter in trainable),
    )


def compiler_facts(wishes: Wishes, *, num_models: int) -> CompilerFacts:
    """Return the facts of this process; the first call imports torch's compiler, which takes seconds."""
    if wishes.switched_off_by:
        return CompilerFacts(switched_off_by=wishes.switched_off_by)
    try:
        frames: Any = import_module("torch._dynamo.eval_frame")
        frames.check_if_dynamo_supported()
        missing = {"cpu": _missing_compiler(), "cuda": _missing_triton()}
    except Exception as error:  # noqa: BLE001 - boundary: torch's compiler on a Python or host that it cannot use
        return CompilerFacts(refusal=" ".join(str(error).split())[:300] or repr(error))
    return CompilerFacts(missing=tuple((k, v) for k, v in missing.items() if v), num_models=num_models)


def precision_facts(device_type: str) -> PrecisionFacts:
    """Return the facts of a call that will run on devices of a type."""
    if device_type != "cuda":
        return PrecisionFacts(
            program_autocasts=torch.is_autocast_enabled("cpu"), has_bfloat16=True, is_emulated=_is_bfloat16_emulated()
        )
    return PrecisionFacts(
        program_autocasts=torch.is_autocast_enabled("cuda"),
        has_bfloat16=bool(torch.cuda.is_bf16_supported(including_emulation=False)),
    )


def _is_bfloat16_emulated() -> bool:
    """Whether the processor lacks AVX-512, without which torch computes in bfloat16 by emulation."""
    try:
        return not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    except (AttributeError, RuntimeError):  # this torch lacks mkldnn
        return False


def is_watched_otherwise() -> bool:
    """Whether torch traces or transforms this call instead of running it; such a call is no basis for a decision."""
    count: Any = getattr(torch._C, "_len_torch_dispatch_stack", int)
    peek: Any = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", lambda: None)
    return bool(torch.jit.is_tracing() or count() or peek() is not None)


def is_lazy(module: nn.Module) -> bool:
    """Whether parameters of a module get their shapes in its first call."""
    return any(torch.nn.parameter.is_lazy(parameter) for parameter in module.parameters())


def _is_compiled(module: nn.Module) -> bool:
    return getattr(module, "_compiled_call_impl", None) is not None or "_orig_mod" in module._modules


def _missing_compiler() -> str:
    builder: Any = import_module("torch._inductor.cpp_builder")
    try:
        builder.get_cpp_compiler()
    except Exception:  # noqa: BLE001 - boundary: torch looks for a compiler and raises an error of its own kind
        return "C++ compiler (g++)"
    return ""


def _missing_triton() -> str:
    if not torch.cuda.is_available():
        return ""
    utilities: Any = import_module("torch.utils._triton")
    return "" if utilities.has_triton() else "triton"


def _name(module: nn.Module) -> str:
    kind: type = module.__class__  # not type(module): smp's wrapper imitates its model's class
    return kind.__name__


def _name_of(kind: type) -> str:
    return kind.__name__
