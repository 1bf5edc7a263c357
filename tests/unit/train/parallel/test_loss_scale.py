"""The scale of losses in half precision."""

import pytest

from clary.train.parallel.loss_scale import LossScale


def dynamic(**arguments: object) -> LossScale:
    return LossScale.make(None, True, {"init_scale": 16.0, **arguments})


def test_a_static_scale_is_constant() -> None:
    scale = LossScale.make(8.0, False, {})
    for has_overflown in (True, False):
        scale.update(has_overflown)
    assert scale.value == 8.0


def test_a_dynamic_scale_starts_high_and_halves_when_gradients_overflow() -> None:
    assert LossScale.make(None, True, {}).value == 2.0**32
    scale = dynamic()
    scale.update(True)
    assert scale.value == 8.0


def test_the_scale_doubles_after_a_window_of_good_steps() -> None:
    scale = dynamic(scale_window=3)
    for _ in range(2):
        scale.update(False)
    assert scale.value == 16.0
    scale.update(False)
    assert scale.value == 32.0


def test_the_scale_does_not_fall_below_its_minimum() -> None:
    scale = dynamic(min_scale=4.0)
    for _ in range(5):
        scale.update(True)
    assert scale.value == 4.0


def test_with_hysteresis_the_scale_falls_only_after_several_overflows() -> None:
    scale = dynamic(delayed_shift=2)
    scale.update(True)
    assert scale.value == 16.0
    scale.update(True)
    assert scale.value == 8.0


def test_with_consecutive_hysteresis_a_good_step_resets_the_count() -> None:
    scale = dynamic(delayed_shift=2, consecutive_hysteresis=True)
    for has_overflown in (True, False, True):
        scale.update(has_overflown)
    assert scale.value == 16.0


def test_unknown_arguments_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="init_scael"):
        LossScale.make(None, True, {"init_scael": 1})


def test_a_loaded_state_continues_the_scale() -> None:
    scale, other = dynamic(scale_window=3), dynamic()
    scale.update(False)
    other.load(scale.state())
    assert other == scale
