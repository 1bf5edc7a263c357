"""`smdistributed.dataparallel.tensorflow`: functions of a program on several ranks, and jobs of SDK v2 on two hosts."""

import pytest
from checks_on_tensorflow_ranks import assert_passed, names
from framework_jobs import PROGRAMS
from tensorflow_jobs import check_same, tensorflow_service, train_alone, train_as_job

pytestmark = [
    pytest.mark.clients,
    pytest.mark.needs("tensorflow", "sdk2"),
    pytest.mark.timeout(500),
    pytest.mark.xdist_group("tensorflow-jobs"),
]
PROGRAM = PROGRAMS / "tensorflow_smddp_program.py"
SIZE = 4  # two ranks per host, as for every job on this instance type in tests


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long(10)
def test_checks_pass_on_every_number_of_ranks(name, size):
    assert_passed(PROGRAM, name, size)


@pytest.mark.parametrize("name", [name for name in names(PROGRAM) if "keras" in name])
@pytest.mark.long(20)
def test_checks_pass_with_legacy_keras(name):
    assert_passed(PROGRAM, name, 2, is_legacy=True)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with tensorflow_service(tmp_path_factory.mktemp("tensorflow-smddp") / "home") as running:
        yield running


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return train_alone(tmp_path_factory.mktemp("tensorflow-smddp-alone"))


@pytest.mark.long(65)
def test_a_tape_inside_a_function_trains_like_one_process(service, alone):
    _, found = train_as_job(service, "smdistributed", "way=smddp")
    check_same(found, alone, size=SIZE)
    assert [facts["local"] for facts in found] == [[0, 2], [1, 2]] * 2


@pytest.mark.long(125)
@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_fit_with_the_distributed_optimizer_trains_like_one_process(service, alone, keras):
    pairs = ("TF_USE_LEGACY_KERAS=1",) if keras == "legacy" else ()
    _, found = train_as_job(service, "smdistributed", "way=smddp_fit", *pairs)
    check_same(found, alone, size=SIZE)
