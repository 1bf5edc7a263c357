"""TensorFlow: not there yet, and said so."""

import pytest

from clary.train._native.errors import CollectiveError
from clary.train.collective.adapters.tensorflow import adapter


def test_asking_for_tensorflow_says_what_to_use_instead():
    with pytest.raises(CollectiveError, match=r"not supported .*MultiWorkerMirroredStrategy") as refusal:
        adapter()
    assert not refusal.value.retryable
