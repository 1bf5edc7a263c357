"""One flat buffer of parameters: its permanent shard, the temporary whole buffer, gradients being reduced.

Shapes: N elements of the whole buffer including padding, S of a segment.

[Note: whole and freed] A module's parameters keep their identity and their shape. While gathered, they are views of the
buffer `full`; while freed, they are one NaN expanded to their shape, so that a read gives NaN and does not crash.
`full` is always the same tensor, whose storage is freed and allocated again: tensors and views of it that autograd has
saved are valid again after the next gather. Gathers write through an alias without autograd history, which does not
change version counters.

[Note: masters] The optimizer updates the shard, which is the master copy of the parameters: float32 if parameters have
16 bits. `slices` are views of the shard: the part of every parameter in this rank's segment, possibly empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from clary.train.parallel.sharded.collectives import start_all_gather, start_reduce_scatter
from clary.train.parallel.sharded.groups import ShardingGroups
from clary.train.parallel.sharded.layout import FlatLayout

_FEW_BYTES = 4  # bytes; the optimizer updates narrower dtypes in float32


class Spares:
    """Keeps the last gradient buffer for the next unit, since new memory costs page faults."""

    def __init__(self) -> None:
        self._spare: torch.Tensor | None = None

    def take(self, numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return a buffer with arbitrary contents.

        Args:
            numel: number of elements of the flat buffer.
            dtype: dtype of its elements.
            device: device of the buffer.
        """
        spare, self._spare = self._spare, None
        if spare is not None and (spare.numel(), spare.dtype, spare.device) == (numel, dtype, device):
            return spare
        return torch.empty(numel, dtype=dtype, device=device)

    def give(self, buffer: torch.Tensor) -> None:
        """Store a buffer that is no longer read.

        Args:
            buffer: flat buffer, which replaces the stored buffer.
        """
        self._spare = buffer

    def clear(self) -> None:
        """Free the memory."""
        self._spare = None


class Flat:
    """The parameters of one buffer on one rank.

    Args:
        parameters: parameters in the order of the layout, which become views here.
        groups: None if the buffer stays whole on this rank.
        compute_dtype: dtype of the parameters.
        reduce_dtype: dtype in which gradients are reduced.
    """

    def __init__(
        self,
        layout: FlatLayout,
        parameters: Sequence[nn.Parameter],
        groups: ShardingGroups | None,
        *,
        compute_dtype: torch.dtype,
        reduce_dtype: torch.dtype,
    ) -> None:
        self.layout = layout
        self.parameters = list(parameters)
        self.groups = groups
        self.is_trained = parameters[0].requires_grad
        self.reduce_dtype = reduce_dtype
        self.segment = groups.segment if groups is not None else 0
        self.pieces = layout.pieces(self.segment)
        self.holders: set[object] = set()  # calls of modules that need the whole buffer
        self.is_whole = groups is None
        self.arrived: set[int] = set()  # indices of parameters with gradients from the running backward pass
        self.used: set[int] = set()  # indices of parameters with gradients since the last step
        self.master_gradient_S: torch.Tensor | None = None
        self.finish_synchronisation: Callable[[], None] | None = None
        self._finish_gather: Callable[[], None] | None = None
        self._gradient_N: torch.Tensor | None = None
        self._aside_S: torch.Tensor | None = None  # gradients already averaged over all replicas
        self.spares = Spares()  # shared by all flat buffers of a model
        ends = [0, *(self._extent(place)[1] for place in range(len(self.parameters)))]
        begins = [*layout.offsets, layout.padded_numel]
        self._gaps = [(end, begin) for end, begin in zip(ends, begins, strict=True) if end < begin]
        self._adopt(compute_dtype)

    @property
    def name(self) -> str:
        """Name of the buffer in error texts."""
        first, *others = self.layout.names
        return f"{first} and {len(others)} more" if others else first

    @property
    def numel(self) -> int:
        """Number of elements of the whole buffer."""
        return self.layout.padded_numel

    @property
    def is_claimed(self) -> bool:
        """Whether a sharded buffer occupies memory as a whole: it is gathered, or being gathered."""
        return self.groups is not None and (self.is_whole or self._finish_gather is not None)

    @property
    def is_complete(self) -> bool:
        """Whether the running backward pass has computed the gradients of all parameters."""
        return len(self.arrived) == len(self.parameters)

    def start_gather(self) -> bool:
        """Start to gather the buffer; return False if it is gathered or being gathered."""
        if self.groups is None or self.is_whole or self._finish_gather is not None:
            return False
        self._full_N.untyped_storage().resize_(self.numel * self._full_N.itemsize)
        self._finish_gather = start_all_gather(self._full_N.data, self.master_S.data, self.groups)
        return True

    def finish_gather(self) -> None:
        """Wait until the buffer is gathered, and make the parameters views of it."""
        if self._finish_gather is None:
            return
        self._finish_gather()
        self._finish_gather = None
        self.is_whole = True
        self._show()

    def free(self) -> None:
        """Free the whole buffer; the shard stays. Does nothing during a gather, or if the buffer always stays whole."""
        if self.groups is None or not self.is_whole:
            return
        self.is_whole = False
        for parameter in self.parameters:
            parameter.data = self._nothing.expand(parameter.shape)
        self._full_N.untyped_storage().resize_(0)

    def refresh(self) -> None:
        """Write the masters into parameters that stay whole, after a step."""
        if self.groups is None and self._full_N is not self.master_S:
            self._full_N.data.copy_(self.master_S.data)

    def accept(self, place: int) -> None:
        """Move the gradient of parameter `place` to the buffer of gradients."""
        parameter = self.parameters[place]
        gradient = parameter.grad
        assert gradient is not None, "a hook of a gradient without one"
        parameter.grad = None
        is_again = place in self.arrived
        self.arrived.add(place)
        self.used.add(place)
        if self.finish_synchronisation is not None:
            self._put_aside()
        offset, numel = self.layout.offsets[place], self.layout.numels[place]
        if self.groups is None:
            self._master_gradient()[offset : offset + numel].add_(gradient.reshape(-1))
            return
        if self._gradient_N is None:
            self._gradient_N = self.spares.take(self.numel, self.reduce_dtype, gradient.device)
        part = self._gradient_N[offset : offset + numel]
        # The mean over the sharding group; divided before the sum, so that 16 bits do not overflow.
        if is_again:
            part.add_(gradient.reshape(-1), alpha=1 / self.layout.degree)
        elif gradient.dtype == part.dtype:
            torch.mul(gradient.reshape(-1), 1 / self.layout.degree, out=part)
        else:  # divided in the wider type
            part.copy_(gradient.reshape(-1)).mul_(1 / self.layout.degree)

    def start_reduction(self) -> Callable[[], None]:
        """Start to reduce arrived gradients; return a function that waits and adds them to the shard's gradient."""
        missing = [place for place in range(len(self.parameters)) if place not in self.arrived]
        self.arrived.clear()
        gradient_N, self._gradient_N = self._gradient_N, None
        if self.groups is None or gradient_N is None:
            return _do_nothing
        for begin, end in (*self._gaps, *(self._extent(place) for place in missing)):
            gradient_N[begin:end].zero_()
        finish = start_reduce_scatter(gradient_N, self.groups)

        def add() -> None:
            if self.master_gradient_S is None:
                self.master_gradient_S = finish().to(self.master_S.dtype)
            else:
                self.master_gradient_S.add_(finish())
            self.spares.give(gradient_N)  # given back only now, since the collective was reading it

        return add

    def end_synchronisation(self) -> None:
        """Wait for a running second hop (all-reduce); then the shard's gradient is the mean over all replicas."""
        if self.finish_synchronisation is not None:
            self.finish_synchronisation()
            self.finish_synchronisation = None
        if self._aside_S is not None:
            self.master_gradient_S = self._master_gradient().add_(self._aside_S)
            self._aside_S = None

    def show_gradients(self, used: Sequence[bool]) -> None:
        """Set every slice's `grad` to its part of the shard's gradient, or to None if its parameter was not used."""
        for slice_, piece, is_used in zip(self.slices, self.pieces, used, strict=True):
            has_gradient = is_used and piece.length > 0
            slice_.grad = self._master_gradient()[piece.at : piece.at + piece.length] if has_gradient else None

    def gradient_square(self, weight: Callable[[str], float] | None) -> float:
        """Return the squared norm of the shard's gradient; `weight` returns a factor for a parameter's name."""
        if self.master_gradient_S is None:
            return 0.0
        if weight is None:
            return float(torch.linalg.vector_norm(self.master_gradient_S)) ** 2
        return sum(
            weight(name)
            * float(torch.linalg.vector_norm(self.master_gradient_S[piece.at : piece.at + piece.length])) ** 2
            for name, piece in zip(self.layout.names, self.pieces, strict=True)
        )

    def forget_arrived(self) -> None:
        """Drop arrived gradients that are not reduced."""
        self.arrived.clear()
        self._gradient_N = None

    def clear_gradients(self) -> None:
        """Drop all gradients."""
        self.forget_arrived()
        self.used.clear()
        self.master_gradient_S = self._aside_S = self.finish_synchronisation = None
        for slice_ in self.slices:
            slice_.grad = None

    def gathered(self, own_S: torch.Tensor) -> torch.Tensor:
        """Gather a whole buffer of masters or optimizer states from all ranks' segments."""
        if self.groups is None:
            return own_S
        whole_N = own_S.new_empty(self.numel)
        start_all_gather(whole_N, own_S, self.groups)()
        return whole_N

    def parts(self, whole_N: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return views of a whole buffer, by parameter name."""
        layout = self.layout
        return {
            name: whole_N[offset : offset + numel].view(shape)
            for name, shape, offset, numel in zip(
                layout.names, layout.shapes, layout.offsets, layout.numels, strict=True
            )
        }

    def write(self, place: int, value: torch.Tensor) -> None:
        """Set parameter `place` from its whole value; a gathered buffer is out of date afterwards.

        Args:
            place: index of the parameter in the layout.
            value: value in the parameter's shape; each rank keeps its own part.
        """
        piece = self.pieces[place]
        own = value.detach().reshape(-1)[piece.start : piece.start + piece.length]
        self.master_S.data[piece.at : piece.at + piece.length].copy_(own)

    def _adopt(self, compute_dtype: torch.dtype) -> None:
        """Copy the parameters' values, and make the parameters views of this buffer."""
        device = self.parameters[0].device
        master_dtype = torch.float32 if self.parameters[0].dtype.itemsize < _FEW_BYTES else self.parameters[0].dtype
        self.master_S = torch.zeros(self.layout.segment_numel, dtype=master_dtype, device=device)
        for place, parameter in enumerate(self.parameters):
            self.write(place, parameter.data)
        is_same = self.groups is None and compute_dtype == master_dtype
        self._full_N = self.master_S if is_same else torch.empty(self.numel, dtype=compute_dtype, device=device)
        self._nothing = torch.full((), float("nan"), dtype=compute_dtype, device=device)
        self.slices = [
            nn.Parameter(self.master_S[piece.at : piece.at + piece.length], requires_grad=self.is_trained)
            for piece in self.pieces
        ]
        if self.groups is None:
            self.refresh()
            self._show()
        else:
            self.is_whole = True
            self.free()

    def _show(self) -> None:
        layout = self.layout
        for parameter, shape, offset, numel in zip(
            self.parameters, layout.shapes, layout.offsets, layout.numels, strict=True
        ):
            parameter.data = self._full_N.data[offset : offset + numel].view(shape)

    def _put_aside(self) -> None:
        """Keep gradients already averaged over all replicas separate from later gradients."""
        self.end_synchronisation()
        self._aside_S, self.master_gradient_S = self.master_gradient_S, None

    def _master_gradient(self) -> torch.Tensor:
        if self.master_gradient_S is None:
            self.master_gradient_S = torch.zeros_like(self.master_S)
        return self.master_gradient_S

    def _extent(self, place: int) -> tuple[int, int]:
        offset = self.layout.offsets[place]
        return offset, offset + self.layout.numels[place]


def _do_nothing() -> None:
    pass
