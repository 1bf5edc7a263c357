"""LAMB and NovoGrad compared with their formulas, one parameter and one number at a time. Functions `test_...()`."""

import copy
import io
import itertools
import math

import torch
from torch import nn

from clary.train.parallel.optimizers.lamb import FusedLAMB
from clary.train.parallel.optimizers.novograd import FusedNovoGrad

SHAPES = [(5, 3), (7,), (2, 3, 4)]
STEPS = 4


def parameters(dtype=torch.float32):
    torch.manual_seed(3)
    found = [nn.Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES]
    with torch.no_grad():
        found[1].zero_()  # a gradient with norm 0
    return found


def gradients(number, dtype=torch.float32):
    generator = torch.Generator().manual_seed(10 + number)
    return [(torch.randn(shape, generator=generator) * 0.7).to(dtype) for shape in SHAPES]


def groups(params):
    return [{"params": params[:2]}, {"params": params[2:], "weight_decay": 0.0, "lr": 0.02}]


def train(kind, options, dtype=torch.float32):
    params = parameters(dtype)
    optimizer = kind(groups(params), **options)
    for number in range(STEPS):
        for parameter, grad in zip(params, gradients(number, dtype), strict=True):
            parameter.grad = grad
        optimizer.step()
    return params, optimizer


def lamb_by_hand(options):
    options = {
        "lr": 1e-3,
        "bias_correction": True,
        "betas": (0.9, 0.999),
        "eps": 1e-6,
        "weight_decay": 0.01,
        "adam_w_mode": True,
        "grad_averaging": True,
        "max_grad_norm": 1.0,
        "use_nvlamb": False,
        **options,
    }
    (beta1, beta2), eps = options["betas"], options["eps"]
    values = [one.detach().double().clone() for one in parameters()]
    means = [torch.zeros_like(one) for one in values]
    squares = [torch.zeros_like(one) for one in values]
    for number in range(STEPS):
        grads = [one.double() for one in gradients(number)]
        norm = math.sqrt(sum(float((grad * grad).sum()) for grad in grads))
        limit = options["max_grad_norm"]
        factor = limit / norm if limit and norm > limit else 1.0
        for place, value in enumerate(values):
            lr, decay = (options["lr"], options["weight_decay"]) if place < 2 else (0.02, 0.0)
            grad = grads[place] * factor
            if not options["adam_w_mode"]:
                grad = grad + decay * value
            means[place] = beta1 * means[place] + (1 - beta1 if options["grad_averaging"] else 1.0) * grad
            squares[place] = beta2 * squares[place] + (1 - beta2) * grad * grad
            mean, square = means[place], squares[place]
            if options["bias_correction"]:
                mean, square = mean / (1 - beta1 ** (number + 1)), square / (1 - beta2 ** (number + 1))
            update = mean / (square.sqrt() + eps)
            if options["adam_w_mode"]:
                update = update + decay * value
            ratio = 1.0
            if (decay or options["use_nvlamb"]) and value.norm() > 0 and update.norm() > 0:
                ratio = float(value.norm() / update.norm())
            values[place] = value - lr * ratio * update
    return values


def novograd_by_hand(options):
    options = {
        "lr": 1e-3,
        "bias_correction": True,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0.0,
        "reg_inside_moment": False,
        "grad_averaging": True,
        "norm_type": 2,
        "init_zero": False,
        **options,
    }
    (beta1, beta2), eps = options["betas"], options["eps"]
    values = [one.detach().double().clone() for one in parameters()]
    means = [torch.zeros_like(one) for one in values]
    norms = [None] * len(values)
    for number in range(STEPS):
        for place, value in enumerate(values):
            lr, decay = (options["lr"], options["weight_decay"]) if place < 2 else (0.02, 0.0)
            grad = gradients(number)[place].double()
            now = float(grad.norm()) if options["norm_type"] == 2 else float(grad.abs().max())
            if norms[place] is None:
                norms[place] = 0.0 if options["init_zero"] else now
            if options["norm_type"] == 2:
                norms[place] = math.sqrt(beta2 * norms[place] ** 2 + (1 - beta2) * now**2)
            else:
                norms[place] = beta2 * norms[place] + (1 - beta2) * now
            first = 1 - beta1 ** (number + 1) if options["bias_correction"] else 1.0
            second = math.sqrt(1 - beta2 ** (number + 1)) if options["bias_correction"] else 1.0
            weight = 1 - beta1 if options["grad_averaging"] else 1.0
            denominator = norms[place] / second + eps
            if options["reg_inside_moment"]:
                means[place] = beta1 * means[place] + weight * (grad / denominator + decay * value)
                values[place] = value - lr * means[place] / first
            else:
                means[place] = beta1 * means[place] + weight * grad
                values[place] = value - lr * (means[place] / first / denominator + decay * value)
    return values


def check(kind, by_hand, options):
    found, _ = train(kind, options)
    for place, (one, expected) in enumerate(zip(found, by_hand(options), strict=True)):
        torch.testing.assert_close(
            one.detach().double(), expected, atol=2e-6, rtol=2e-5, msg=lambda text, at=place: f"{options}, {at}: {text}"
        )


def raised(kind, **options):
    try:
        kind(parameters(), **options)
    except ValueError as error:
        return str(error)
    return None


def test_lamb_equals_its_formula_with_every_option():
    for options in (
        {},
        {"lr": 0.05, "weight_decay": 0.1},
        {"lr": 0.05, "adam_w_mode": False, "weight_decay": 0.1},
        {"lr": 0.05, "bias_correction": False, "grad_averaging": False},
        {"lr": 0.05, "use_nvlamb": True, "max_grad_norm": 0.0, "betas": (0.8, 0.95), "eps": 1e-3},
    ):
        check(FusedLAMB, lamb_by_hand, options)


def test_novograd_equals_its_formula_with_every_option():
    for options in (
        {},
        {"lr": 0.05, "weight_decay": 0.1, "betas": (0.95, 0.9)},
        {"lr": 0.05, "reg_inside_moment": True, "weight_decay": 0.1},
        {"lr": 0.05, "bias_correction": False, "grad_averaging": False, "init_zero": True},
        {"lr": 0.05, "norm_type": 0, "eps": 1e-3},
    ):
        check(FusedNovoGrad, novograd_by_hand, options)


def test_loaded_states_continue_bit_by_bit():
    for kind, dtype in itertools.product((FusedLAMB, FusedNovoGrad), (torch.float32, torch.bfloat16)):
        params, optimizer = train(kind, {"lr": 0.05}, dtype)
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        again = copy.deepcopy(params)
        other = kind(groups(again), lr=0.05)
        other.load_state_dict(torch.load(file))
        for both in (params, again):
            for parameter, grad in zip(both, gradients(9, dtype), strict=True):
                parameter.grad = grad.clone()
        optimizer.step()
        other.step()
        assert all(torch.equal(one, two) for one, two in zip(params, again, strict=True)), (kind, dtype)
        for one, two in zip(params, again, strict=True):
            for name, expected in optimizer.state[one].items():
                assert other.state[two][name].dtype == torch.float32, (kind, dtype, name)
                assert torch.equal(other.state[two][name], expected), (kind, dtype, name)


def test_a_state_that_was_rounded_to_16_bits_is_widened_on_loading():
    for kind in (FusedLAMB, FusedNovoGrad):
        params, optimizer = train(kind, {"lr": 0.05}, torch.bfloat16)
        saved = optimizer.state_dict()
        for state in saved["state"].values():
            state["exp_avg"] = state["exp_avg"].bfloat16()
        other = kind(groups(copy.deepcopy(params)), lr=0.05)
        other.load_state_dict(saved)
        assert all(state["exp_avg"].dtype == torch.float32 for state in other.state.values()), kind


def test_16_bit_parameters_are_updated_in_32_bits():
    for kind in (FusedLAMB, FusedNovoGrad):
        wide, _ = train(kind, {"lr": 0.05})
        narrow, optimizer = train(kind, {"lr": 0.05}, torch.bfloat16)
        for one, two in zip(wide, narrow, strict=True):
            assert two.dtype == torch.bfloat16
            torch.testing.assert_close(one.detach(), two.detach().float(), atol=0.05, rtol=0.05)
        assert all(state["exp_avg"].dtype == torch.float32 for state in optimizer.state.values())


def test_gradients_are_not_changed_and_parameters_without_gradient_are_skipped():
    for kind in (FusedLAMB, FusedNovoGrad):
        params = parameters()
        optimizer = kind(params, lr=0.1)
        before = [one.detach().clone() for one in params]
        grad = gradients(0)[0] * 100
        params[0].grad = grad.clone()
        optimizer.step()
        assert torch.equal(params[0].grad, grad)
        assert [torch.equal(a, b) for a, b in zip(before, params, strict=True)] == [False, True, True]
        optimizer.zero_grad()
        assert params[0].grad is None


def test_unsupported_options_are_refused():
    assert "amsgrad" in raised(FusedLAMB, amsgrad=True)
    assert "amsgrad" in raised(FusedNovoGrad, amsgrad=True)
    assert "norm_type is 1" in raised(FusedNovoGrad, norm_type=1)
    assert "lr is -1" in raised(FusedLAMB, lr=-1)
    assert "betas (1.0, 0.9)" in raised(FusedNovoGrad, betas=(1.0, 0.9))
