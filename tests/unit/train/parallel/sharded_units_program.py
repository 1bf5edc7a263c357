"""The choice of modules as units, the parameters that they need, and the tensors in modules' outputs."""

import dataclasses
from typing import Any

import torch
from torch import nn

from clary.train.parallel.configuration import read_configuration
from clary.train.parallel.sharded.settings import settings_of
from clary.train.parallel.sharded.tensors import tensors_in
from clary.train.parallel.sharded.units import find_units, register_parameter


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.ones(2))
        self.embedding = nn.Embedding(4, 2)
        self.encoder = nn.Sequential(nn.Linear(2, 2), nn.ModuleList([Layer(), Layer()]))
        self.extra = nn.ParameterList([torch.ones(3)])
        self.head = nn.Linear(2, 4, bias=False)
        self.head.weight = self.embedding.weight


def named(units, module):
    names = {one: name or "root" for name, one in module.named_modules()}
    return {
        units.names[one]: sorted(names[units.modules[number]] for number in users) for one, users in units.users.items()
    }


def test_layers_in_lists_are_units():
    module = Model()
    found = named(find_units(module), module)
    assert found["encoder.1.0.mlp.0.weight"] == ["encoder.1.0"]
    assert found["encoder.1.1.mlp.2.bias"] == ["encoder.1.1"]
    assert found["encoder.0.weight"] == ["encoder.0"]


def test_parameters_of_divided_modules_belong_to_the_root_unit():
    found = named(find_units(module := Model()), module)
    assert found["token"] == ["root"]
    assert found["extra.0"] == ["root"]


def test_shared_weights_belong_to_all_modules_that_share_them():
    found = named(find_units(module := Model()), module)
    assert found["embedding.weight"] == ["embedding", "head"]
    assert "head.weight" not in found


def test_a_module_with_two_parents_belongs_to_both():
    module = nn.Module()
    shared = nn.Linear(2, 2)
    module.layers = nn.ModuleList([nn.Module(), nn.Module()])
    for layer in module.layers:
        layer.inner = nn.Module()
        layer.inner.shared = shared
    found = named(find_units(module), module)
    assert found["layers.0.inner.shared.weight"] == ["layers.0", "layers.1"]


def test_explicit_classes_override_the_choice():
    module = Model()
    found = named(find_units(module, [nn.Linear]), module)
    assert found["encoder.1.0.mlp.0.weight"] == ["encoder.1.0.mlp.0"]


def test_registered_parameters_also_belong_to_the_module_that_borrows_them():
    module = Model()
    register_parameter(module, module.encoder[0].weight)
    assert named(find_units(module), module)["encoder.0.weight"] == ["encoder.0", "root"]


def test_registered_parameters_without_an_owner_are_refused():
    module = Model()
    register_parameter(module, nn.Parameter(torch.ones(7)))
    failure = ""
    try:
        find_units(module)
    except ValueError as error:
        failure = str(error)
    assert "shape (7,)" in failure, failure
    try:
        register_parameter(module, torch.ones(2))
    except TypeError as error:
        failure = str(error)
    assert "expected a Parameter" in failure, failure


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    more: Any


class Cache:
    def __init__(self, keys):
        self.keys = keys
        self.itself = self


def test_tensors_are_found_at_any_depth():
    one, two, three, four = (torch.tensor(float(number)) for number in range(4))
    nested = Output(one, {"a": [two, (three, "word")], "cache": Cache([four])})
    assert [float(found) for found in tensors_in(nested)] == [0.0, 1.0, 2.0, 3.0]
    assert list(tensors_in([None, 3, "x", nn.Linear(1, 1), Output])) == []


def test_settings_are_derived_from_the_keys():
    keys = {
        "ddp": True,
        "bf16": True,
        "sharded_data_parallel_degree": 2,
        "sdp_reduce_bucket_size": 7,
        "sdp_param_persistence_threshold": 8,
        "sdp_max_live_parameters": 9,
        "sdp_gradient_clipping": 0.5,
    }
    found = settings_of(read_configuration(keys))
    assert (found.reduce_bucket_size, found.param_persistence_threshold, found.max_live_parameters) == (7, 8, 9)
    assert found.gradient_clipping == 0.5
    assert found.compute_dtype == torch.bfloat16
    assert settings_of(read_configuration({"fp16": True})).compute_dtype == torch.float16
    assert settings_of(read_configuration({})).compute_dtype is None
