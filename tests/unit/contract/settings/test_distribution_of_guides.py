"""Keys of `distribution` that guides use and that no SDK knows."""

import ast
import json
import re
from pathlib import Path

from clary.contract.settings.distribution import MEANT_BY_GUIDES, warnings

REQUESTS = Path(__file__).parents[3] / "assets/requests"


def test_the_warning_on_a_guides_key_gives_the_form_that_the_sdk_knows():
    for name in ("pt-top-smddp", "pt-top-smmp", "pt-pytorchx"):  # the hyperparameters that SDK v2 sent for these keys
        request = json.loads((REQUESTS / f"{name}.CreateTrainingJob.json").read_text())
        (words,) = warnings(request.get("request", request)["HyperParameters"], num_hosts=2)
        assert words.endswith(MEANT_BY_GUIDES), name


def test_each_form_can_be_pasted():
    forms = re.findall(r"'(\w+)' is (\{.*?\})(?=, '\w+' is |$)", MEANT_BY_GUIDES)
    assert [name for name, _ in forms] == ["smdistributed_dataparallel", "smdistributed_modelparallel", "pytorchx"]
    for _, form in forms:
        assert isinstance(ast.literal_eval(form), dict)
