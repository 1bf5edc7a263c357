"""Functions of steps as module functions, methods, and functions of a class without `self`."""

import copy
import functools
import inspect
import pickle
from typing import Any

import pytest

from clary.train.parallel.arguments.step_function import StepFunction


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return StepFunction(function, run)


@decorated
def module_step(model: Any, batch: int = 1, *, scale: int = 1) -> Any:
    """Train."""
    return model, batch * scale


class Trainer:
    @decorated
    def without_self(model: Any, batch: Any) -> Any:
        return model, batch

    @decorated
    def method(self, batch: Any) -> Any:
        return self, batch

    @staticmethod
    @decorated
    def static(batch: Any) -> Any:
        return batch

    @classmethod
    @decorated
    def of_class(cls, batch: Any) -> Any:
        return cls, batch

    @classmethod
    @decorated
    def of_oddly_named_class(klass, batch: Any) -> Any:
        return klass, batch

    @decorated
    def any_arguments(*args: Any) -> Any:
        return args

    @decorated
    def oddly_named(this, batch: Any, *, scale: int = 1) -> Any:
        return this, batch * scale


def test_a_function_of_a_class_without_self_gets_no_instance() -> None:
    trainer = Trainer()
    assert trainer.without_self("model", 2) == ("model", 2)
    assert trainer.without_self(model="model", batch=2) == ("model", 2)
    assert Trainer.without_self("model", 2) == ("model", 2)


def test_methods_get_their_instance_or_class() -> None:
    trainer = Trainer()
    assert trainer.method(2) == (trainer, 2)
    assert Trainer.method(trainer, 2) == (trainer, 2)
    assert trainer.method.__self__ is trainer
    assert trainer.static(2) == Trainer.static(2) == 2
    assert trainer.of_class(2) == Trainer.of_class(2) == (Trainer, 2)
    assert trainer.of_oddly_named_class(2) == Trainer.of_oddly_named_class(2) == (Trainer, 2)


def test_a_call_that_fits_only_with_the_instance_gets_it() -> None:
    trainer = Trainer()
    assert trainer.oddly_named(2) == trainer.oddly_named(batch=2) == (trainer, 2)
    assert trainer.oddly_named(2, scale=3) == (trainer, 6)
    assert trainer.oddly_named("model", 2) == Trainer.oddly_named("model", 2) == ("model", 2)
    assert trainer.any_arguments(2) == (trainer, 2)
    with pytest.raises(TypeError, match="missing 2 required positional arguments"):
        trainer.without_self()
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given"):
        trainer.without_self(1, 2, 3)


def test_a_function_of_an_instance_equals_that_of_its_class_and_is_pickled() -> None:
    trainer = Trainer()
    assert trainer.without_self == Trainer.without_self
    assert (trainer.without_self.__name__, str(inspect.signature(trainer.without_self))) == (
        "without_self",
        "(model: Any, batch: Any) -> Any",
    )
    assert pickle.loads(pickle.dumps(trainer.without_self))("model", 2) == ("model", 2)


def test_a_function_keeps_its_name_its_documentation_and_its_signature() -> None:
    assert (module_step.__name__, module_step.__qualname__) == ("module_step", "module_step")
    assert (module_step.__module__, module_step.__doc__) == (__name__, "Train.")
    assert str(inspect.signature(module_step)).startswith("(model: ")
    assert list(inspect.signature(Trainer().method).parameters) == ["batch"]
    assert module_step.__wrapped__(1, 2) == (1, 2)
    assert "module_step" in repr(module_step)


def test_a_function_is_pickled_by_its_name() -> None:
    for one in (module_step, Trainer.without_self):
        assert pickle.loads(pickle.dumps(one)) is one
        assert copy.deepcopy(one) is one
    method = pickle.loads(pickle.dumps(Trainer().method))
    assert method.__func__ is Trainer.method
    assert isinstance(method.__self__, Trainer)


def test_a_callable_without_a_name_is_decorated_too() -> None:
    class Model:
        def __call__(self, batch: int) -> int:
            return batch + 1

    model = Model()
    one = decorated(model)

    class Holder:
        step = one

    assert one(1) == Holder().step(1) == 2
    assert list(inspect.signature(one).parameters) == ["batch"]
