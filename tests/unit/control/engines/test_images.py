import tomllib

import pytest

from clary.base.errors import EngineError, WireError
from clary.control.engines.images import parse_image, resolve, why_default_fails
from clary.control.settings import Settings

ECR = "763104351884.dkr.ecr.us-west-2.amazonaws.com/"
TORCH = {"/py/torch": {"torch": "2.8.0+cpu"}}


class FakeProbe:
    def __init__(self, modules_by_python, added=None):
        self._modules = modules_by_python
        self._added = added or {}

    def candidates(self):
        return [python for python in self._modules if python not in self._added.values()]

    def added(self):
        return self._added

    def modules(self, python):
        if python not in self._modules:
            raise EngineError(f"{python} cannot be run")
        return self._modules[python]

    def install_command(self, *packages):
        return f"/py/plain -m pip install {' '.join(packages)}"

    def cpu_build_option(self):
        return "--cpu"


@pytest.mark.parametrize(
    ("image", "repository", "tag"),
    [
        (ECR + "pytorch-training:2.8.0-gpu-py312", "pytorch-training", "2.8.0-gpu-py312"),
        ("pytorch-training", "pytorch-training", "latest"),
        ("myteam/pytorch:1", "myteam/pytorch", "1"),
        ("localhost/a:b", "a", "b"),
        ("host:5000/a/b:c", "a/b", "c"),
        ("host:5000/a@sha256:0123", "a", "latest"),
        ("a:b@sha256:0123", "a", "b"),
    ],
)
def test_registry_is_ignored_and_tag_defaults_to_latest(image, repository, tag):
    name = parse_image(image)
    assert (name.repository, name.tag) == (repository, tag)


def test_aws_image_takes_the_first_python_with_torch():
    probe = FakeProbe({"/py/plain": {}, **TORCH})
    environment, notes = resolve(ECR + "pytorch-training:2.8.0-cpu-py312", Settings(), probe)
    assert (environment.name, environment.python) == ("default", "/py/torch")
    assert environment.image == ECR + "pytorch-training:2.8.0-cpu-py312"
    assert notes == ()


def test_other_framework_version_is_noted():
    _, notes = resolve(ECR + "pytorch-training:2.2.0-gpu-py310", Settings(), FakeProbe(TORCH))
    assert notes == (
        "the environment 'default' stands for image pytorch-training:2.2.0-gpu-py310 with torch 2.8.0+cpu instead of "
        "2.2.0; clary environments add pytorch-training:2.2.0-gpu-py310 makes one like it",
    )


def test_hugging_face_image_without_transformers_is_noted():
    image = ECR + "huggingface-pytorch-training:2.8.0-transformers4.56.2-gpu-py312-cu129-ubuntu22.04"
    environment, notes = resolve(image, Settings(), FakeProbe(TORCH))
    assert environment.python == "/py/torch"
    assert len(notes) == 1
    assert "with no transformers" in notes[0]


def test_aws_image_of_a_missing_framework_is_refused_with_lines_to_add():
    image = ECR + "tensorflow-training:2.19.0-cpu-py312"
    with pytest.raises(WireError) as caught:
        resolve(image, Settings(), FakeProbe(TORCH))
    assert caught.value.code == "ValidationException"
    assert "no module tensorflow" in caught.value.message
    assert image in caught.value.message


def lines_of(message):
    return tomllib.loads(message[message.index("\n") :])


@pytest.mark.parametrize(
    "image",
    ["my-own:1", ECR + "we/ird:tag-1", 'quote"back\\slash:x', "nötig:ü"],
)
def test_lines_of_a_refusal_are_settings_that_make_the_image_known(image):
    with pytest.raises(WireError) as caught:
        resolve(image, Settings(), FakeProbe(TORCH))
    lines = lines_of(caught.value.message)
    lines["environments"] = dict.fromkeys(lines["environments"], "/py/torch")
    environment, _ = resolve(image, Settings(**lines), FakeProbe(TORCH))
    assert environment.python == "/py/torch"


def test_no_python_with_torch_is_refused_with_the_line_for_the_default_environment():
    with pytest.raises(WireError, match="no Python with torch") as caught:
        resolve("pytorch-training:2.8.0", Settings(), FakeProbe({"/py/plain": {}}))
    assert "default" in lines_of(caught.value.message)["environments"]
    assert "to have one, run: /py/plain -m pip install torch numpy (without a GPU, --cpu at" in caught.value.message
    assert "the service need not be started again). To take a Python that you have instead" in caught.value.message


def test_a_mapping_to_a_failing_default_environment_gets_the_same_message():
    with pytest.raises(WireError) as caught:
        resolve("mine:1", Settings(images={"mine:*": "default"}), FakeProbe({"/py/plain": {}}))
    assert "to have one, run: /py/plain -m pip install torch numpy" in caught.value.message
    assert "To take a Python that you have instead" in caught.value.message


@pytest.mark.parametrize(
    ("settings", "modules", "expected"),
    [
        (Settings(), TORCH, ""),
        (Settings(), {"/py/plain": {}}, "to have one, run: /py/plain -m pip install torch numpy"),
        (Settings(default_python="/py/plain"), {"/py/plain": {}}, "names /py/plain, which has no torch"),
        (Settings(default_python="/gone"), TORCH, "setting default_python: /gone cannot be run"),
        (
            Settings(environments={"default": "/py/plain"}),
            {"/py/plain": {}},
            "setting environments.default names /py/plain, which has no torch",
        ),
        (Settings(environments={"default": "/gone"}), TORCH, "setting environments.default: /gone cannot be run"),
    ],
)
def test_the_reason_why_the_default_environment_fails_is_one_sentence(settings, modules, expected):
    reason = why_default_fails(settings, FakeProbe(modules))
    assert expected in reason
    assert bool(reason) == bool(expected)


def test_most_specific_pattern_wins():
    settings = Settings(
        images={"*": "all", "team/*": "team", "team/a:*": "a", "team/a:1": "one"},
        environments={"all": "/py/torch", "team": "/py/team", "a": "/py/a", "one": "/py/one"},
    )
    probe = FakeProbe({path: {} for path in ("/py/torch", "/py/team", "/py/a", "/py/one")})
    names = [resolve(image, settings, probe)[0].name for image in ("x:1", "team/b:1", "team/a:2", "host.io/team/a:1")]
    assert names == ["all", "team", "a", "one"]


def test_patterns_win_over_the_rules_for_aws_images():
    settings = Settings(images={"pytorch-training:2.2*": "old"}, environments={"old": "/py/old"})
    probe = FakeProbe({"/py/old": {"torch": "2.2.2"}, **TORCH})
    assert resolve(ECR + "pytorch-training:2.2.0-gpu", settings, probe)[0].name == "old"
    assert resolve(ECR + "pytorch-training:2.8.0-gpu", settings, probe)[0].name == "default"


def test_pattern_without_its_environment_is_refused():
    with pytest.raises(WireError, match="no environment of that name is set"):
        resolve("a:b", Settings(images={"a:*": "gone"}), FakeProbe(TORCH))


def test_interpreter_that_does_not_run_is_refused_as_a_mistake_of_the_settings():
    settings = Settings(images={"a:*": "e"}, environments={"e": "/nowhere"})
    with pytest.raises(WireError, match="/nowhere cannot be run"):
        resolve("a:b", settings, FakeProbe(TORCH))


def test_default_python_of_the_settings_wins():
    probe = FakeProbe({"/py/torch": {"torch": "2.8.0"}, "/py/set": {"torch": "2.8.1"}})
    image = "pytorch-training:2.8"
    assert resolve(image, Settings(default_python="/py/set"), probe)[0].python == "/py/set"
    assert resolve(image, Settings(environments={"default": "/py/set"}), probe)[0].python == "/py/set"


@pytest.mark.parametrize(
    "repository",
    [
        "pytorch-training",
        "huggingface-pytorch-training",
        "huggingface-pytorch-trcomp-training",
        "pytorch-trcomp-training",
        "smdistributed-modelparallel",
        "pytorch-training-neuronx",
    ],
)
def test_every_torch_image_of_aws_is_known(repository):
    assert resolve(f"{ECR}{repository}:2.8.0-gpu", Settings(), FakeProbe(TORCH))[0].name == "default"


@pytest.mark.parametrize(
    ("repository", "module"),
    [("mxnet-training", "mxnet"), ("sagemaker-xgboost", "xgboost"), ("sagemaker-scikit-learn", "sklearn")],
)
def test_other_frameworks_need_their_module(repository, module):
    with pytest.raises(WireError, match=f"no module {module}"):
        resolve(f"{ECR}{repository}:1.7-1", Settings(), FakeProbe(TORCH))
    probe = FakeProbe({"/py/torch": {"torch": "2.8.0", module: "1.7.6"}})
    assert resolve(f"{ECR}{repository}:1.7-1", Settings(), probe) is not None


@pytest.mark.parametrize("modules", [TORCH, {"/py/plain": {}}])
def test_a_framework_without_an_environment_is_refused_with_the_command_that_makes_one(modules):
    with pytest.raises(WireError) as caught:
        resolve(f"{ECR}sagemaker-xgboost:1.7-1", Settings(), FakeProbe(modules))
    assert "run: clary environments add sagemaker-xgboost:1.7-1 (" in caught.value.message
    assert "no Python with torch" not in caught.value.message
    assert lines_of(caught.value.message)["images"] == {"sagemaker-xgboost:1.7-1": "my-xgboost"}


@pytest.mark.parametrize(
    ("image", "has"),
    [
        ("tensorflow-training:2.13-cpu-py310", "'old' has tensorflow 2.11.1, 'tf' has tensorflow 2.21.0"),
        ("pytorch-training:2.0-cpu-py310", "'old' has torch 2.8.0, 'tf' has torch 2.9.0"),
    ],
)
def test_environments_with_another_version_of_the_framework_are_named_in_the_refusal(image, has):
    modules = {
        "/py/default": {"jax": "0.4"},
        "/py/tf": {"tensorflow": "2.21.0", "torch": "2.9.0"},
        "/py/old": {"tensorflow": "2.11.1", "torch": "2.8.0"},
    }
    pythons = {"default": "/py/default", "tf": "/py/tf", "old": "/py/old", "gone": "/py/gone"}
    with pytest.raises(WireError) as caught:
        resolve(ECR + image, Settings(environments=pythons), FakeProbe(modules))
    assert has in caught.value.message
    assert f"clary environments add {image} (" in caught.value.message
    assert "gone" not in caught.value.message
    lines = lines_of(caught.value.message)
    assert lines == {"images": {image: "old"}}
    settings = Settings(environments=pythons, images=lines["images"])
    assert resolve(ECR + image, settings, FakeProbe(modules))[0].python == "/py/old"


def test_the_algorithm_of_release_0_72_has_an_image_of_another_name():
    probe = FakeProbe({"/py/boosting": {"torch": "2.8.0", "xgboost": "3.2.0"}})
    image = "433757028032.dkr.ecr.us-west-2.amazonaws.com/xgboost:1"
    assert resolve(image, Settings(), probe)[0].python == "/py/boosting"
    with pytest.raises(WireError, match="no image of this name is known here"):
        resolve("123456789012.dkr.ecr.us-west-2.amazonaws.com/xgboost:1", Settings(), probe)


@pytest.mark.parametrize(
    ("repository", "algorithm"),
    [("linear-learner", "Linear Learner"), ("forecasting-deepar", "DeepAR Forecasting"), ("pca", "Principal")],
)
def test_other_built_in_algorithms_are_refused_by_their_name_and_may_be_mapped(repository, algorithm):
    image = f"174872318107.dkr.ecr.us-west-2.amazonaws.com/{repository}:1"
    with pytest.raises(WireError) as caught:
        resolve(image, Settings(), FakeProbe(TORCH))
    assert f"is SageMaker's built-in algorithm {algorithm}" in caught.value.message
    assert "only XGBoost" in caught.value.message
    settings = Settings(images={f"{repository}:1": "mine"}, environments={"mine": "/py/torch"})
    assert resolve(image, settings, FakeProbe(TORCH))[0].name == "mine"


def test_the_environment_with_the_versions_of_the_tag_stands_for_an_image():
    probe = FakeProbe(
        {
            "/py/default": {"torch": "2.13.0", "python": "3.11.7"},
            "/py/added": {"torch": "2.8.0+cpu", "python": "3.12.1"},
            "/py/set": {"torch": "2.6.0", "python": "3.12.1"},
        },
        {"pytorch-2.8-py312": "/py/added"},
    )
    settings = Settings(environments={"old": "/py/set"})
    for tag, name, python in (
        ("2.8.0-gpu-py312", "pytorch-2.8-py312", "/py/added"),
        ("2.6-cpu-py312", "old", "/py/set"),
        ("2.13.0-cpu-py311", "default", "/py/default"),
    ):
        environment, notes = resolve(f"{ECR}pytorch-training:{tag}", settings, probe)
        assert (environment.name, environment.python, notes) == (name, python, ())
    environment, notes = resolve(f"{ECR}pytorch-training:2.7.0-gpu-py310", settings, probe)
    assert environment.name == "default"
    assert "torch 2.13.0 instead of 2.7.0, Python 3.11.7 instead of 3.10" in notes[0]


def test_the_tags_torch_with_another_python_precedes_the_default_environment():
    probe = FakeProbe(
        {
            "/py/default": {"torch": "2.13.0", "python": "3.10.4"},
            "/py/added": {"torch": "2.8.1", "python": "3.12.1"},
            "/py/like": {"torch": "2.8.0", "python": "3.11.1"},
        },
        {"pytorch-2.8-py312": "/py/added", "pytorch-2.8-py311": "/py/like"},
    )
    environment, notes = resolve(f"{ECR}pytorch-training:2.8.0-gpu-py310", Settings(), probe)
    assert environment.name == "pytorch-2.8-py311"
    assert "with Python 3.11.1 instead of 3.10" in notes[0]
    environment, _ = resolve(f"{ECR}pytorch-training:2.8.0-gpu-py312", Settings(), probe)
    assert environment.name == "pytorch-2.8-py312", "the interpreter counts before the third number of torch"


def test_an_environment_of_another_framework_needs_no_line_in_settings():
    probe = FakeProbe({**TORCH, "/py/tf": {"tensorflow": "2.19.1", "python": "3.12.1"}}, {"tensorflow-2.19": "/py/tf"})
    environment, notes = resolve(f"{ECR}tensorflow-training:2.19.0-cpu-py312", Settings(), probe)
    assert environment.python == "/py/tf"
    assert "tensorflow 2.19.1 instead of 2.19.0" in notes[0]


def test_an_added_environment_can_be_named_by_settings():
    probe = FakeProbe({**TORCH, "/py/added": {"torch": "2.8.0"}}, {"pytorch-2.8": "/py/added"})
    environment, _ = resolve("mine:1", Settings(images={"mine:*": "pytorch-2.8"}), probe)
    assert environment.python == "/py/added"


IMAGE = ECR + "tensorflow-training:{}-cpu-py310"


@pytest.mark.parametrize(
    ("version", "modules", "variables", "words"),
    [
        (
            "2.12.0",
            {"tensorflow": "2.21.0", "tf_keras": "2.21.0"},
            {"TF_USE_LEGACY_KERAS": "1", "CLARY_KERAS_2": "1"},
            "are Keras 2 as in the",
        ),
        ("2.12.0", {"tensorflow": "2.21.0"}, {}, "tf_keras is not installed"),
        ("2.12.0", {"tensorflow": "2.15.1", "tf_keras": "2.15.0"}, {}, ""),
        ("2.16.1", {"tensorflow": "2.21.0", "tf_keras": "2.21.0"}, {}, ""),
        (
            "1.15.5",
            {"tensorflow": "2.21.0", "tf_keras": "2.21.0"},
            {"TF_USE_LEGACY_KERAS": "1", "CLARY_KERAS_2": "1"},
            "are Keras 2 as in the",
        ),
    ],
)
def test_images_of_tensorflow_before_2_16_get_keras_2(version, modules, variables, words):
    probe = FakeProbe({"/py/torch": {"torch": "2.13.0"}, "/py/tf": modules})
    settings = Settings(environments={"tf": "/py/tf"}, images={"tensorflow-training:*": "tf"})
    environment, notes = resolve(IMAGE.format(version), settings, probe)
    assert environment.variables == variables
    assert any(words in note for note in notes) if words else not any("Keras" in note for note in notes)
