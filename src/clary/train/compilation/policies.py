"""Decides which models are compiled and which run under autocast, with the reason. Pure.

Where: `outermost` calls the policies once for each model; `compiled` calls `judge_first_call` after the first call.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_MODELS = 8  # per process; a program with more "models" calls the parts of a model one by one
MAX_GRAPHS = 64  # per model; each graph takes seconds to compile, and returns to Python at every call
# Wrappers that prevent the compilation of a model, by class, with the reason.
_IN_THE_WAY = {
    "DataParallel": "threads of DataParallel share it",
    "DeepSpeedEngine": "DeepSpeed hooks into its layers; set compile in DeepSpeed's own configuration",
    "DistributedModel": "smp cuts it into stages and calls their parts one by one",
    "FullyShardedDataParallel": "FullyShardedDataParallel without use_orig_params=True hides its parameters",
}


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Facts of the outermost module of a call in training.

    Args:
        name: class of the model, inside wrappers that allow its compilation.
        wrapper: class of the wrapper around the model; empty without a wrapper.
        shows_parameters: whether FullyShardedDataParallel has use_orig_params=True.
        num_trainable: number of parameters with gradients.
        compiled_by_program: whether the program compiles the model, or a part of it, by torch.compile.
        is_scripted: whether the model contains TorchScript.
        device_types: types of the devices that hold the model's parameters.
        dtypes: types of the model's parameters with gradients, by torch's names, such as float32.
    """

    name: str
    wrapper: str = ""
    shows_parameters: bool = False
    num_trainable: int
    compiled_by_program: bool = False
    is_scripted: bool = False
    device_types: frozenset[str]
    dtypes: frozenset[str] = frozenset({"float32"})


@dataclass(frozen=True, kw_only=True)
class CompilerFacts:
    """Facts of the process.

    Args:
        switched_off_by: variable that turns torch.compile off.
        refusal: torch's own reason why this Python cannot compile; empty if it can.
        missing: pairs of a device type and the missing program or package that builds code for it.
        num_models: number of compiled models.
    """

    switched_off_by: str = ""
    refusal: str = ""
    missing: tuple[tuple[str, str], ...] = ()
    num_models: int = 0


_EMULATED = (
    "this processor has no instructions for bfloat16, so that a step can take ten times as long as in float32: leave "
    "sagemaker_amp out here"
)


@dataclass(frozen=True, kw_only=True)
class PrecisionFacts:
    """Facts of a call.

    Args:
        program_autocasts: whether the program itself runs the model under autocast.
        has_bfloat16: whether the device computes in bfloat16.
        is_emulated: whether the device lacks instructions for bfloat16.
    """

    program_autocasts: bool
    has_bfloat16: bool
    is_emulated: bool = False


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Decision of a policy, with the reason; an empty reason is not logged."""

    applies: bool
    reason: str = ""
    dtype: str = ""  # type for autocast


def judge_compilation(model: ModelFacts, compiler: CompilerFacts) -> Decision:
    """Return the decision whether to compile a model."""
    if not model.num_trainable:
        return Decision(applies=False)
    reason = _why_not_compiled(model, compiler)
    return Decision(applies=not reason, reason=reason)


def judge_first_call(*, num_graphs: int, num_compiled: int, failure: str) -> Decision:
    """Return the decision whether a model stays compiled after its first call.

    Args:
        num_graphs: number of graphs into which torch has cut the model.
        num_compiled: number of these graphs that could be compiled.
        failure: first error of the other graphs; empty if there are no others.
    """
    if not num_compiled:
        return Decision(applies=False, reason=failure or "torch found nothing in it that it can compile")
    if num_graphs > MAX_GRAPHS:
        return Decision(applies=False, reason=f"its code breaks it into {num_graphs} graphs, more than {MAX_GRAPHS}")
    return Decision(applies=True, reason=failure)


def judge_precision(model: ModelFacts, call: PrecisionFacts) -> Decision:
    """Return the decision whether to run a model under autocast, with the type."""
    if not model.num_trainable:
        return Decision(applies=False)
    if call.program_autocasts:
        return Decision(applies=False, reason="the program runs it under autocast itself")
    if model.dtypes and "float32" not in model.dtypes and "float64" not in model.dtypes:
        return Decision(applies=False, reason=f"its parameters are {' and '.join(sorted(model.dtypes))} already")
    if model.device_types not in ({"cpu"}, {"cuda"}):
        return Decision(applies=False, reason=_devices_in_words(model.device_types))
    if call.has_bfloat16:
        return Decision(applies=True, dtype="bfloat16", reason=_EMULATED if call.is_emulated else "")
    return Decision(
        applies=True,
        dtype="float16",
        reason="this GPU has no bfloat16: small gradients can vanish without a torch.amp.GradScaler in the program",
    )


def _why_not_compiled(model: ModelFacts, compiler: CompilerFacts) -> str:
    if model.compiled_by_program:
        return "the program has it compiled itself"
    if model.is_scripted:
        return "it is TorchScript"
    if model.wrapper in _IN_THE_WAY and not model.shows_parameters:
        return _IN_THE_WAY[model.wrapper]
    if compiler.switched_off_by:
        return f"{compiler.switched_off_by} is set"
    if compiler.refusal:
        return compiler.refusal
    if model.device_types not in ({"cpu"}, {"cuda"}):
        return _devices_in_words(model.device_types)
    missing = dict(compiler.missing).get(min(model.device_types))
    if missing:
        return f"there is no {missing} on this host"
    if compiler.num_models >= MAX_MODELS:
        return f"{compiler.num_models} others are compiled: the program calls the parts of a model one by one"
    return ""


def _devices_in_words(types: frozenset[str]) -> str:
    if len(types) > 1:
        return f"its parameters lie on several kinds of devices: {', '.join(sorted(types))}"
    return f"its parameters lie on a device of the kind {min(types, default='none')}, expected cpu or cuda"
