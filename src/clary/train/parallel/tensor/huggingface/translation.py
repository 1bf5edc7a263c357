"""Conversion of states between transformers checkpoints and distributed modules: names and shapes.

"Ours" are names and tensors of distributed modules, "theirs" are names and tensors of transformers. States here hold
whole tensors, not slices. Names may have any prefix, such as the path of a module around the model. Keys without a rule
are unchanged, except layers' masks and computed buffers of older versions, which are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

StateDict = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Rule:
    """One tensor of theirs, which equals one tensor of ours, or the concatenation of several.

    Args:
        is_transposed: whether their weight is [in, out].
        is_by_head: whether their tensor is ordered by head, then by part (query, key, value), instead of by part first.
    """

    ours: tuple[str, ...]
    theirs: str
    is_transposed: bool = False
    is_by_head: bool = False

    def split(self, tensor: torch.Tensor, num_heads: int | None) -> list[torch.Tensor]:
        """Split a tensor of theirs into ours.

        Args:
            tensor: their weight [out, in], or [in, out] if `is_transposed`; or their bias [out].
            num_heads: required if `is_by_head`.

        Raises: ValueError if `num_heads` is required and None.
        """
        if self.is_transposed:
            tensor = tensor.t()
        if self.is_by_head:
            parts = tensor.unflatten(0, (_known(num_heads), len(self.ours), -1)).unbind(1)
            return [part.flatten(0, 1).contiguous() for part in parts]
        return [part.contiguous() for part in tensor.chunk(len(self.ours))]

    def join(self, tensors: Sequence[torch.Tensor], num_heads: int | None) -> torch.Tensor:
        """Join tensors of ours into theirs."""
        if self.is_by_head:
            heads = [tensor.unflatten(0, (_known(num_heads), -1)) for tensor in tensors]
            whole = torch.stack(heads, 1).flatten(0, 2)
        else:
            whole = torch.cat(list(tensors))
        return whole.t().contiguous() if self.is_transposed else whole


def linear(ours: str | Sequence[str], theirs: str, *, transposed: bool = False, by_head: bool = False) -> list[Rule]:
    """Return the rules for a linear layer of theirs, which is one of ours or several; biases may be missing.

    Args:
        ours: path of our layer, or paths of several layers whose outputs are concatenated in theirs.
        theirs: path of their layer.
        transposed: whether their weight is [in, out].
        by_head: whether their tensor is ordered by head, then by part.
    """
    names = (ours,) if isinstance(ours, str) else tuple(ours)
    return [
        Rule(tuple(f"{name}.weight" for name in names), f"{theirs}.weight", transposed, by_head),
        Rule(tuple(f"{name}.bias" for name in names), f"{theirs}.bias", is_by_head=by_head),
    ]


@dataclass(frozen=True)
class Translation:
    """The rules for the states of one kind of model.

    Args:
        ours: prefix of our layers, such as "transformer.seq_layers".
        theirs: prefix of their layers, such as "transformer.h".
        layer: rules for names within a layer.
        model: rules for names outside of layers.
        mask: path, in their layer, of the module with a causal mask buffer in older versions.
        computed: further buffers of their layer in states of older versions; our layers compute them.
    """

    ours: str
    theirs: str
    layer: tuple[Rule, ...]
    model: tuple[Rule, ...] = ()
    mask: str | None = None
    computed: tuple[str, ...] = ()

    def to_theirs(self, state: StateDict, *, num_heads: int | None = None, max_seq_len: int | None = None) -> StateDict:
        """Convert our state to theirs, even if only layers of their model were replaced by ours.

        Args:
            num_heads: required if a tensor of theirs is ordered by head.
            max_seq_len: if given, adds the causal masks that states of older transformers contain.

        Raises: ValueError if a part of one of their tensors, or a required `num_heads`, is missing.
        """
        *_, last = self.theirs.split(".")
        patterns = [(_pattern(self.ours), self.theirs), (_pattern(last), last)]
        return self._translate(state, patterns, num_heads, is_ours=True, max_seq_len=max_seq_len)

    def to_ours(self, state: StateDict, *, num_heads: int | None = None) -> StateDict:
        """Convert their state to ours.

        Raises: ValueError if a required `num_heads` is missing.
        """
        base, _, last = self.theirs.rpartition(".")
        pattern = re.compile(rf"^(.*?)(?:{re.escape(base)}\.)?{re.escape(last)}\.(\d+)\.(.+)$" if base else "^$")
        patterns = [(pattern if base else _pattern(last), self.ours)]
        return self._translate(state, patterns, num_heads, is_ours=False, max_seq_len=None)

    def layer_to_ours(self, state: StateDict, *, num_heads: int | None = None) -> StateDict:
        """Convert the state of one of their layers to ours, or the state of their model to one with our layers.

        In a model's state, layers keep their paths, and keys outside of layers are unchanged.
        """
        return self._translate_layers(state, num_heads, is_ours=False, max_seq_len=None)

    def layer_to_theirs(
        self, state: StateDict, *, num_heads: int | None = None, max_seq_len: int | None = None
    ) -> StateDict:
        """Convert a state that `layer_to_ours` returned back to theirs.

        Args: as `to_theirs`.
        """
        return self._translate_layers(state, num_heads, is_ours=True, max_seq_len=max_seq_len)

    def _translate_layers(
        self, state: StateDict, num_heads: int | None, *, is_ours: bool, max_seq_len: int | None
    ) -> StateDict:
        """Translate every layer under its own prefix, which distinguishes layers."""
        known = self._known_names(is_ours=is_ours)
        layers: dict[str, StateDict] = {}
        found: StateDict = {}
        for key, value in state.items():
            name = next((one for one in known if key == one or key.endswith(f".{one}")), None)
            if name is None:
                found[key] = value
            else:
                layers.setdefault(key.removesuffix(name), {})[name] = value
        return found | self._translate_each(layers, num_heads, is_ours=is_ours, max_seq_len=max_seq_len)

    def _translate(
        self,
        state: StateDict,
        patterns: Iterable[tuple[re.Pattern[str], str]],
        num_heads: int | None,
        *,
        is_ours: bool,
        max_seq_len: int | None,
    ) -> StateDict:
        known = self._known_names(is_ours=is_ours)
        layers: dict[str, StateDict] = {}
        found: StateDict = {}
        for key, value in state.items():
            for pattern, there in patterns:
                match = pattern.match(key)
                if match is not None and match[3] in known:
                    layers.setdefault(f"{match[1]}{there}.{match[2]}.", {})[match[3]] = value
                    break
            else:
                found[self._rename(key, is_ours=is_ours)] = value
        return found | self._translate_each(layers, num_heads, is_ours=is_ours, max_seq_len=max_seq_len)

    def _translate_each(
        self, layers: dict[str, StateDict], num_heads: int | None, *, is_ours: bool, max_seq_len: int | None
    ) -> StateDict:
        """Translate each layer and join the results, with each layer's prefix."""
        found: StateDict = {}
        for prefix, tensors in layers.items():
            layer = self._translate_layer(tensors, num_heads, is_ours=is_ours)
            if is_ours and max_seq_len is not None:
                layer |= self._causal_mask(max_seq_len)
            found |= {f"{prefix}{name}": value for name, value in layer.items()}
        return found

    def _known_names(self, *, is_ours: bool) -> set[str]:
        """Return the names within a layer that have rules."""
        return {name for rule in self.layer for name in (rule.ours if is_ours else (rule.theirs,))} | self._masks()

    def _translate_layer(self, tensors: StateDict, num_heads: int | None, *, is_ours: bool) -> StateDict:
        found: StateDict = {}
        rest = {name: value for name, value in tensors.items() if name not in self._masks()}
        for rule in self.layer:
            names = rule.ours if is_ours else (rule.theirs,)
            present = [name for name in names if name in rest]
            if not present:
                continue
            if len(present) < len(names):
                raise ValueError(f"the state has {', '.join(present)}, but not all of {', '.join(names)}")
            values = [rest.pop(name) for name in names]
            if is_ours:
                found[rule.theirs] = rule.join(values, num_heads)
            else:
                found |= dict(zip(rule.ours, rule.split(values[0], num_heads), strict=True))
        return found | rest

    def _rename(self, key: str, *, is_ours: bool) -> str:
        for rule in self.model:
            old, new = (rule.ours[0], rule.theirs) if is_ours else (rule.theirs, rule.ours[0])
            if key == old or key.endswith(f".{old}"):
                return key.removesuffix(old) + new
        return key

    def _masks(self) -> set[str]:
        masks = set() if self.mask is None else {f"{self.mask}.bias", f"{self.mask}.masked_bias"}
        return masks | set(self.computed)

    def _causal_mask(self, length: int) -> StateDict:
        """Return a layer's buffers in older versions of transformers; in these masks, 1 marks a visible key."""
        if self.mask is None:
            return {}
        mask = torch.ones(length, length, dtype=torch.uint8).tril()[None, None]
        return {f"{self.mask}.bias": mask, f"{self.mask}.masked_bias": torch.tensor(_OLD_MASKED_SCORE)}


_OLD_MASKED_SCORE = -1e4  # a masked score in older versions of transformers


def _pattern(prefix: str) -> re.Pattern[str]:
    """Return a regex for keys of layers, with groups: text before `prefix`, layer number, name in the layer."""
    return re.compile(rf"^(|.*?\.){re.escape(prefix)}\.(\d+)\.(.+)$")


def _known(num_heads: int | None) -> int:
    if num_heads is None:
        raise ValueError(
            "this model keeps queries, keys and values of each head together: num_attention_heads must say how many "
            "heads there are, unless a model of its kind was made distributed in this program before"
        )
    return num_heads
