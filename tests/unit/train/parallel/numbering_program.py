"""Numbers of an optimizer's parameters and axes of their slices. Functions `test_...()`; see `torch_programs`."""

import types

import torch
from torch import nn

from clary.train.parallel.numbering import Numbering
from clary.train.parallel.placed_model import PlacedModel
from clary.train.parallel.tensor.slices import TensorSlice, dimension_of, mark

CUTS = {
    "module.0.weight": 0,
    "module.0.bias": 0,
    "module.2.weight": 1,
}  # dimension of the slice by name; a parameter that is not listed is whole


class FakePlaced(PlacedModel):
    """A model with modules on given pipeline ranks, seen from the first rank; no process has a runtime."""

    def __init__(self, module, owners=None):
        super().__init__(module, types.SimpleNamespace(pipeline_rank=0))
        self._owners = owners or {name: 0 for name, _ in module.named_modules()}
        self.partitioned = True


def perceptron():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def grouped(model):
    """Return an optimizer with matrices in the second group, so that names and numbers differ in order."""
    return torch.optim.SGD(
        [{"params": [one for one in model.parameters() if one.dim() == places]} for places in (1, 2)], lr=0.1
    )


def put_masters(optimizer):
    """Replace parameters by float32 copies in the optimizer; return the copies by group."""
    for group in optimizer.param_groups:
        group["params"] = [nn.Parameter(one.detach().clone()) for one in group["params"]]
    return [list(group["params"]) for group in optimizer.param_groups]


def failure_of(call):
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller looks at it
        return error
    raise AssertionError("nothing was raised")


def turned(numbers):
    return {number: key for key, number in numbers.items()}


def tensor_rank(rank, size=2):
    """Return the model, the optimizer and the numbering of one tensor rank."""
    model = FakePlaced(perceptron())
    for name, parameter in model.named_parameters():
        if name in CUTS:
            piece = TensorSlice(CUTS[name], rank, size)
            parameter.data = piece.of(parameter.data)
            mark(parameter, piece)
    optimizer = grouped(model)
    return model, optimizer, Numbering(optimizer, model)


def test_numbers_equal_those_of_the_optimizer_s_state():
    model = FakePlaced(perceptron())
    optimizer = grouped(model)
    numbers = Numbering(optimizer, model).by_name()
    assert numbers == {"module.0.bias": 0, "module.2.bias": 1, "module.0.weight": 2, "module.2.weight": 3}
    named = dict(model.named_parameters())
    groups = zip(optimizer.param_groups, optimizer.state_dict()["param_groups"], strict=True)
    for group, stored in groups:
        for parameter, number in zip(group["params"], stored["params"], strict=True):
            assert named[turned(numbers)[number]] is parameter


def test_parameters_that_the_optimizer_lacks_have_no_number():
    model = FakePlaced(perceptron())
    numbering = Numbering(torch.optim.SGD(model.inner[2].parameters(), lr=0.1), model)
    assert numbering.by_name() == {"module.2.weight": 0, "module.2.bias": 1}
    assert numbering.local() == dict(enumerate(model.inner[2].parameters()))
    assert id(model.inner[0].weight) not in numbering.by_id()


def test_masters_have_the_numbers_of_their_parameters():
    model = FakePlaced(perceptron())
    optimizer = grouped(model)
    numbering = Numbering(optimizer, model)
    before, parameters = numbering.by_name(), numbering.local()
    masters = [one for group in put_masters(optimizer) for one in group]
    ids = numbering.by_id()
    for number, master in enumerate(masters):
        assert ids[id(master)] == ids[id(parameters[number])] == number
    assert turned(ids) == {number: id(master) for number, master in enumerate(masters)}
    assert numbering.by_name() == before
    assert all(numbering.local()[number] is one for number, one in parameters.items())
    assert numbering.axes() == {id(master): None for master in masters}


def test_masters_are_assembled_over_tensor_ranks_and_split_again():
    whole = dict(FakePlaced(perceptron()).named_parameters())
    ranks = [tensor_rank(rank) for rank in (0, 1)]
    # By rank and `id`: what a script gathers is a list of masters and the numbers of their ids.
    masters = [{id(one): one for group in put_masters(optimizer) for one in group} for _, optimizer, _ in ranks]
    numberings = [numbering for *_, numbering in ranks]
    names = turned(numberings[0].by_name())
    for key, master in masters[0].items():
        name = names[numberings[0].by_id()[key]]
        axis = numberings[0].axes()[key]
        assert axis == CUTS.get(name)
        if axis is None:
            assert torch.equal(master, whole[name])
            continue
        parts = [masters[rank][turned(one.by_id())[one.by_name()[name]]] for rank, one in enumerate(numberings)]
        joined = torch.cat(parts, dim=axis)
        assert torch.equal(joined, whole[name])
        length = joined.shape[axis] // 2
        assert torch.equal(joined.narrow(axis, length, length), parts[1])


def test_numbers_are_stable_when_a_parameter_is_removed_from_its_group():
    _, optimizer, numbering = tensor_rank(0)
    names, ids, axes = numbering.by_name(), numbering.by_id(), numbering.axes()
    dropped = optimizer.param_groups[1]["params"].pop(0)
    assert numbering.by_name() == names
    assert numbering.by_id() == ids
    assert numbering.axes() == {key: axis for key, axis in axes.items() if key != id(dropped)}


def test_flat_shards_have_numbers_and_no_axis():
    _, optimizer, numbering = tensor_rank(0)
    group = optimizer.param_groups[1]
    group["params"] = [one.detach().reshape(-1)[:2] for one in group["params"]]
    ids, axes = numbering.by_id(), numbering.axes()
    assert [ids[id(one)] for one in group["params"]] == [2, 3]
    assert axes.keys() == {id(one) for one in optimizer.param_groups[0]["params"]}


def test_added_groups_are_numbered_before_their_masters_exist():
    model = FakePlaced(perceptron())
    optimizer = torch.optim.SGD(model.inner[0].parameters(), lr=0.1)
    numbering = Numbering(optimizer, model)
    optimizer.add_param_group({"params": list(model.inner[2].parameters())})
    numbering.take_new_groups()
    masters = put_masters(optimizer)
    assert [numbering.by_name()[f"module.2.{name}"] for name in ("weight", "bias")] == [2, 3]
    assert [numbering.by_id()[id(one)] for one in masters[1]] == [2, 3]


def test_parameters_of_other_pipeline_ranks_have_numbers_but_are_not_local():
    module = perceptron()
    model = FakePlaced(module, {"": 0, "0": 0, "1": 0, "2": 1})
    numbering = Numbering(torch.optim.SGD(model.parameters(), lr=0.1), model)
    assert list(numbering.by_name().values()) == [0, 1, 2, 3]
    assert numbering.local() == {0: module[0].weight, 1: module[0].bias}
    model.partitioned = False
    failure = failure_of(numbering.local)
    assert isinstance(failure, RuntimeError)
    assert "no ranks yet" in str(failure)


def test_a_parameter_is_a_slice_along_the_dimension_of_its_mark():
    parameter = nn.Parameter(torch.zeros(2, 3))
    assert dimension_of(parameter) is None
    mark(parameter, TensorSlice(0, 1, 2))
    assert dimension_of(parameter) == 0, "the first dimension is no missing one"
