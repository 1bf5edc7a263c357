"""Unsharded states of tensor-parallel modules."""

from clary.train.parallel.tensor.collectives import gather_whole
from clary.train.parallel.tensor.slices import slices_of


def gather_state_dict(module, group):
    """Return the module's state with every slice gathered; a collective call of the tensor group."""
    return gather_tensors(module, module.state_dict(), group)


def gather_tensors(module, tensors, group):
    """Return tensors named like the module's parameters, such as gradients, with every slice gathered."""
    pieces = slices_of(module)
    return {
        key: gather_whole(value, group, pieces[key].dimension) if key in pieces else value.detach()
        for key, value in tensors.items()
    }
