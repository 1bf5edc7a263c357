"""Rules on a model's inputs: images that were not normalized, sequences that are mostly padding."""

from __future__ import annotations

from typing import Any

from clary.train.debugger.errors import ConfigurationError
from clary.train.debugger.reading.trial import Trial
from clary.train.debugger.rule import Finding
from clary.train.debugger.rules.base import BuiltInRule, Names, as_list, as_number, as_whole


class CheckInputImages(BuiltInRule):
    """The values of input images are not around 0.

    Formula: |mean(c)| > threshold_mean, where c are the values of one color channel in all images so far, once there
        are at least threshold_samples images
    Args:
        threshold_mean: largest distance from 0 that is accepted.
        threshold_samples: least number of images for a finding.
        regex: regular expressions that match names of image tensors; the default is AWS's: the name of the input in an
            MXNet model.
        channel: index of the dimension of color channels; dimension 0 counts images.
    """

    def __init__(
        self,
        base_trial: Trial,
        threshold_mean: Any = 0.2,
        threshold_samples: Any = 500,
        regex: Names = ".*hybridsequential0_input_0",
        channel: Any = 1,
    ) -> None:
        super().__init__(base_trial)
        self.threshold_mean = as_number("threshold_mean", threshold_mean, least=0)
        self.threshold_samples = as_whole("threshold_samples", threshold_samples, least=1)
        self.regex = as_list(regex)
        self.channel = as_whole("channel", channel)
        self._sums: dict[int, dict[str, tuple[int, float, Any]]] = {}  # step -> tensor -> images, values each, sums

    def invoke_at_step(self, step: int) -> Finding | None:
        """Check a global step; return a finding or None."""
        import numpy as np

        names = self.base_trial.tensor_names(step=step, regex=self.regex)
        steps = [one for one in self.base_trial.steps() if one <= step]
        for one in steps:
            if one not in self._sums:
                self._sums[one] = self._of_step(one)
        for name in self.looks_at(names):
            parts = [self._sums[one][name] for one in steps if name in self._sums[one]]
            num_images = sum(images for images, _, _ in parts)
            if num_images < self.threshold_samples or len({len(sums) for _, _, sums in parts}) != 1:
                continue
            means = np.sum([sums for _, _, sums in parts], axis=0) / sum(values for _, values, _ in parts)
            worst = int(np.abs(means).argmax())
            if abs(means[worst]) > self.threshold_mean:
                return self.finding(
                    step,
                    f"channel {worst} of {name} has a mean of {means[worst]:.3g} over {num_images} images; expected "
                    f"at most {self.threshold_mean:g} from 0",
                    name,
                    mean=float(means[worst]),
                )
        return None

    def _of_step(self, step: int) -> dict[str, tuple[int, float, Any]]:
        found: dict[str, tuple[int, float, Any]] = {}
        names = self.base_trial.tensor_names(step=step, regex=self.regex)
        for tensor, worker, _ in self.of_workers(step, names):
            value = tensor.value(step, worker=worker)
            if value.ndim > self.channel and value.size:
                others = tuple(axis for axis in range(value.ndim) if axis != self.channel)
                sums = value.sum(axis=others, dtype="f8")
                images, values, earlier = found.get(tensor.name, (0, 0.0, 0.0))
                found[tensor.name] = (images + value.shape[0], values + value.size / len(sums), earlier + sums)
        return found


class NLPSequenceRatio(BuiltInRule):
    """Sequences contain too much of one token, such as padding or the token for unknown words.

    Formula: 100 * mean(x == v) > p for the tokens x of a step, and a value v of token_values with its percentage p of
        token_thresholds_percent
    Args:
        tensor_regex: regular expressions that match names of sequence tensors; the default is AWS's: the name of an
            embedding in MXNet.
        token_values: token values, separated by commas.
        token_thresholds_percent: for each token value, the largest percentage that is accepted.
    """

    def __init__(
        self,
        base_trial: Trial,
        tensor_regex: Names = ".*embedding0_input_0",
        token_values: Any = 0,
        token_thresholds_percent: Any = 50,
    ) -> None:
        super().__init__(base_trial)
        self.tensor_regex = as_list(tensor_regex)
        self.token_values = [as_number("token_values", one) for one in _words(token_values)]
        self.token_thresholds_percent = [
            as_number("token_thresholds_percent", one, least=0) for one in _words(token_thresholds_percent)
        ]
        if len(self.token_values) != len(self.token_thresholds_percent):
            raise ConfigurationError(
                f"token_thresholds_percent has {len(self.token_thresholds_percent)} numbers; expected one for each of "
                f"the {len(self.token_values)} token_values"
            )

    def invoke_at_step(self, step: int) -> Finding | None:
        """Check a global step; return a finding or None."""
        names = self.base_trial.tensor_names(step=step, regex=self.tensor_regex)
        for tensor, worker, called in self.of_workers(step, names):
            tokens = tensor.value(step, worker=worker)
            if not tokens.size:
                continue
            for token, limit in zip(self.token_values, self.token_thresholds_percent, strict=True):
                share = 100 * float((tokens == token).mean())
                if share > limit:
                    return self.finding(
                        step,
                        f"{share:.3g} % of {called} are {token:g}; expected at most {limit:g} %",
                        tensor.name,
                        share=share,
                    )
        return None


def _words(value: Any) -> list[str]:
    return as_list(str(value) if isinstance(value, int | float) else value)
