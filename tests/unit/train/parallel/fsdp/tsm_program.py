"""Parts of `torch.sagemaker` that need torch and one process: delayed parameters, offloading, S3, folders, names."""

import importlib
import io
import os
import subprocess
import sys
import tempfile
import unittest
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    OffloadWrapper,
    checkpoint_wrapper,
    offload_wrapper,
)
from torch.distributed.checkpoint import CheckpointException

from clary.compat import clary_autoload
from clary.train.parallel.fsdp import offloading
from clary.train.parallel.fsdp.checkpoint import s3
from clary.train.parallel.fsdp.checkpoint.folders import limit_num_subdirs
from clary.train.parallel.fsdp.checkpoint.loading import load
from clary.train.parallel.fsdp.checkpoint.local_state import init_optim_state
from clary.train.parallel.fsdp.checkpoint.s3_errors import retry_with_jitter
from clary.train.parallel.fsdp.checkpoint.saving import save
from clary.train.parallel.fsdp.checkpoint.saving_interval import compute_auto_checkpoint_interval
from clary.train.parallel.fsdp.checkpoint.storage import DistributedFileSystemReader, DistributedFileSystemWriter
from clary.train.parallel.fsdp.delayed import DelayedParamIniter
from clary.train.parallel.fsdp.logs import get_logger
from clary.train.parallel.fsdp.modules import empty_module_params, move_buffers_to_device
from clary.train.parallel.fsdp.session import init
from clary.train.parallel.fsdp.state import RandomStates, state
from clary.train.parallel.fsdp.training import transform

SUBMODULES = (
    "state_handler",
    "delayed_param",
    "grad_norm",
    "logger",
    "utils.utils",
    "utils.process_group_utils",
    "utils.module_utils",
    "checkpoint.constants",
    "checkpoint.utils",
    "distributed.checkpoint.state_dict_saver",
    "distributed.checkpoint.async_utils",
    "distributed.checkpoint.state_dict_loader",
    "distributed.checkpoint.state_dict_utils",
    "distributed.checkpoint.filesystem",
    "distributed.checkpoint.s3_filesystem",
)


KINDS = ("step_durations", "step_ckpt_durations", "ckpt_preprocessing_durations", "ckpt_io_durations")


def refused(call, kind, words):
    told = None
    try:
        call()
    except kind as error:
        told = str(error)
    assert told is not None, f"nothing was raised; expected {words!r}"
    assert words in told, told


def test_every_submodule_has_its_listed_names():
    clary_autoload.register()
    import torch.sagemaker as tsm

    assert Path(tsm.__file__).parent.name == "torch_sagemaker"
    assert not (Path(torch.__file__).parent / "sagemaker").exists()
    for name in SUBMODULES:
        module = importlib.import_module(f"torch.sagemaker.{name}")
        for one in module.__all__:
            getattr(module, one)
    assert tsm.state is sys.modules["torch.sagemaker.state_handler"].state
    refused(lambda: importlib.import_module("torch.sagemaker.not_there"), ModuleNotFoundError, "sagemaker.not_there")


def test_a_hook_of_the_first_release_says_that_it_has_no_effect():
    clary_autoload.register()
    module = importlib.import_module("torch.sagemaker.distributed.fsdp.fully_sharded_data_parallel")
    with unittest.TestCase().assertLogs(get_logger(), "INFO") as told:
        module.register_tp_processing_pre_comm_hook(nn.Linear(2, 2), None)
    assert "has no effect here" in told.output[0]


def test_calls_before_init_name_the_missing_call():
    state.reset()
    refused(lambda: transform(nn.Linear(1, 1)), RuntimeError, "call tsm.init first")
    refused(init, RuntimeError, "init_process_group first")
    state.tensor_parallel_degree = 1
    assert (state.rank, state.world_size, state.tp_rank, state.cp_rank, state.ep_rank) == (0, 1, 0, 0, 0)
    refused(lambda: state.world_process_group, RuntimeError, "init_process_group")


def test_a_program_of_one_rank_transforms_no_module():
    state.reset()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        os.environ["SM_HP_MP_PARAMETERS"] = '{"activation_loading_horizon": 3}'
        init({"activation_loading_horizon": 4})
        assert state.activation_loading_horizon == 3
        model = nn.Linear(2, 2)
        assert transform(model, dtype=torch.bfloat16) is model
        assert model.weight.dtype is torch.bfloat16
        with torch.device("meta"):
            meta = nn.Linear(2, 2)
        assert transform(meta, device="cpu", dtype=torch.float16).weight.is_meta
        refused(lambda: transform(model, cp_comm_type="ring"), ValueError, "expected p2p or all_gather")
    finally:
        del os.environ["SM_HP_MP_PARAMETERS"]
        state.reset()
        dist.destroy_process_group()


class NoReset(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))


class LostBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(4.0))


class SomeRMSNorm(NoReset):
    pass


def initialise(model, **options):
    initer = DelayedParamIniter(model, **options)
    with initer.validate_params_and_buffers_inited():
        for module in model.modules():
            initer.get_param_init_fn()(module)
        for module in model.modules():
            initer.get_post_param_init_fn()(module)


def test_modules_that_cannot_be_initialised_are_named():
    with torch.device("meta"):
        models = [nn.Sequential(NoReset()), nn.Sequential(LostBuffer()), nn.Sequential(nn.Linear(2, 2), SomeRMSNorm())]
    refused(lambda: initialise(models[0]), RuntimeError, "0, a NoReset, has parameters and no reset_parameters")
    refused(lambda: initialise(models[1]), RuntimeError, "0.table has no values")
    refused(
        lambda: initialise(models[2], init_method_using_config=lambda module: None), RuntimeError, "0.bias, 0.weight"
    )


def test_the_script_s_own_function_initialises_parameters():
    def fill(module):
        if isinstance(module, nn.Linear):
            module.weight.data.fill_(2)
            module.bias.data.zero_()

    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2), SomeRMSNorm(), nn.BatchNorm1d(2))
    initialise(model[:2], init_method_using_config=fill)
    assert model[0].weight.eq(2).all()
    assert model[1].weight.eq(1).all()
    initialise(model[2:])
    assert (model[2].running_var.tolist(), model[2].num_batches_tracked.item()) == ([1, 1], 0)
    empty_module_params(model, "meta", recurse=True)
    move_buffers_to_device(model, "cpu", recurse=True)
    assert all(one.is_meta for one in model.parameters())


def test_an_offload_wrapper_uses_the_engine_with_bitwise_equal_results():
    def gradients(wrap):
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(4)])
        for at in range(4):
            model[at] = checkpoint_wrapper(model[at], checkpoint_impl=CheckpointImpl.REENTRANT)
        model = wrap(model)
        features = torch.randn(128, 256, requires_grad=True)  # a tensor above the minimum size for offloading
        model(features).square().mean().backward()
        return [one.grad.clone() for one in model.parameters()]

    expected = gradients(lambda model: model)
    own = OffloadWrapper.forward
    with tempfile.TemporaryDirectory() as folder:
        engine = offloading.install(horizon=2, folder=Path(folder))
        found = gradients(offload_wrapper)
        assert engine.counts.offloaded_bytes >= 3 * 128 * 256 * 4, engine.counts
        before = engine.counts.offloaded_bytes
        gradients(lambda model: model)  # checkpointed only: the tensors stay in place
        assert engine.counts.offloaded_bytes == before
        offloading.remove()
    assert OffloadWrapper.forward is own
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


class Missing(Exception):
    response = {"Error": {"Code": "404"}}


class FakeS3:
    """Objects in memory; the first call of each operation fails, as on a bad network."""

    def __init__(self):
        self.objects, self.parts, self.failed, self.num_aborted = {}, {}, set(), 0

    def _once(self, name):
        if name not in self.failed:
            self.failed.add(name)
            raise ConnectionError(f"{name}: said for this test")

    def _get(self, bucket, key):
        if (bucket, key) not in self.objects:
            raise Missing
        return self.objects[bucket, key]

    def put_object(self, Bucket, Key, Body):
        self._once("put")
        self.objects[Bucket, Key] = Body

    def head_object(self, Bucket, Key):
        return {"ContentLength": len(self._get(Bucket, Key)), "ETag": str(hash(self._get(Bucket, Key)))}

    def get_object(self, Bucket, Key, Range, IfMatch):
        self._once("get")
        assert IfMatch == self.head_object(Bucket, Key)["ETag"]
        first, last = map(int, Range.removeprefix("bytes=").split("-"))
        return {"Body": io.BytesIO(self._get(Bucket, Key)[first : last + 1])}

    def copy_object(self, Bucket, Key, CopySource):
        self.objects[Bucket, Key] = self._get(CopySource["Bucket"], CopySource["Key"])

    def delete_object(self, Bucket, Key):
        self.objects.pop((Bucket, Key), None)

    def create_multipart_upload(self, Bucket, Key):
        self.parts = {}
        return {"UploadId": "1"}

    def upload_part(self, Bucket, Key, UploadId, PartNumber, Body):
        self._once("part")
        self.parts[PartNumber] = Body
        return {"ETag": f"tag {PartNumber}"}

    def complete_multipart_upload(self, Bucket, Key, UploadId, MultipartUpload):
        numbers = [one["PartNumber"] for one in MultipartUpload["Parts"]]
        self.objects[Bucket, Key] = b"".join(self.parts[number] for number in numbers)

    def abort_multipart_upload(self, Bucket, Key, UploadId):
        self.parts = {}
        self.num_aborted += 1

    def get_bucket_location(self, Bucket):
        return {"LocationConstraint": None if Bucket == "oldest" else "eu-central-1"}


def test_checkpoints_are_stored_in_s3():
    fake = FakeS3()
    made = s3._client
    s3._client = lambda region, config: fake
    try:
        tensors = {"weight": torch.randn(50, 30), "step": 7}
        save(tensors, checkpoint_id="s3://bucket/run/step-7")
        assert sorted(key for _, key in fake.objects) == ["run/step-7/.metadata", "run/step-7/__0_0.distcp"]
        found = {"weight": torch.zeros(50, 30), "step": 0}
        load(found, checkpoint_id="s3://bucket/run/step-7/")
        assert torch.equal(found["weight"], tensors["weight"])
        assert found["step"] == 7
        del fake.objects["bucket", "run/step-7/.metadata"]
        refused(lambda: load(found, checkpoint_id="s3://bucket/run/step-7"), CheckpointException, "was not finished")
    finally:
        s3._client = made


def test_s3_parts_paths_and_regions():
    fake = FakeS3()
    files = s3.S3FileSystem(client=fake)
    least, s3.PART_BYTES = s3.PART_BYTES, 10
    try:
        with files.create_stream("s3://b/k", "wb") as file:
            file.write(bytes(range(35)))
    finally:
        s3.PART_BYTES = least
    assert fake.objects["b", "k"] == bytes(range(35))
    assert fake.num_aborted == 1
    with files.create_stream("s3://b/k", "rb") as file:
        file.seek(-5, io.SEEK_END)
        assert file.read() == bytes(range(30, 35))
    try:
        with files.create_stream("s3://b/broken", "wb") as file:
            file.write(b"half")
            raise KeyError("the writer fails")
    except KeyError:
        assert not files.exists("s3://b/broken")
    assert s3.parse_s3_uri("s3://b/a/c/") == ("b", "a/c")
    refused(lambda: s3.parse_s3_uri("s3:///a"), ValueError, "expected s3://bucket/prefix")
    assert s3.get_s3_region_from_uri("s3://b/a", fake) == "eu-central-1"
    assert s3.get_s3_region_from_uri("s3://oldest/a", fake) == "us-east-1"
    assert s3.get_s3_region_from_uri("https://b.s3.ap-south-1.amazonaws.com/a") == "ap-south-1"
    waits = []
    refused(lambda: retry_with_jitter(lambda: 1 / 0, num_tries=3, sleep=waits.append), ZeroDivisionError, "")
    assert len(waits) == 2
    refused(lambda: retry_with_jitter(lambda: int("x"), sleep=waits.append), ValueError, "invalid literal")
    assert len(waits) == 2


def test_s3_without_boto3_names_the_package_to_install():
    if importlib.util.find_spec("boto3") is not None:
        raise AssertionError("this environment was to have no boto3")
    refused(lambda: save({}, checkpoint_id="s3://bucket/x"), Exception, "add boto3")


def test_invalid_paths_are_refused():
    refused(lambda: save({}, checkpoint_id=None), ValueError, "checkpoint_id is None")
    for path in ("s3:/bucket/x", Path("s3://bucket/x")):
        for call in (save, load):
            refused(lambda call=call, path=path: call({}, checkpoint_id=path), ValueError, "lost a slash")
        for kind in (DistributedFileSystemWriter, DistributedFileSystemReader):
            refused(partial(kind, path), ValueError, "lost a slash")
    assert not Path("s3:").exists()
    assert DistributedFileSystemWriter.validate_checkpoint_id("s3://b/k")
    assert DistributedFileSystemReader.validate_checkpoint_id("/tmp")


def test_durations_that_are_not_finite_make_no_interval_of_saves():
    for wrong in ([], [float("inf")], [1.0, float("inf")], [1.0, float("nan")], [float("nan"), 1.0], [1.0, -1.0]):
        for place in range(4):
            given = [[1.0, 2.0]] * 4
            given[place] = wrong
            refused(
                lambda given=given: compute_auto_checkpoint_interval(*given),
                ValueError,
                f"{KINDS[place]} {wrong!r}",
            )
    assert compute_auto_checkpoint_interval([2.0, 1.0], [3.0], [0.0], [4.0, 5.5]).interval == 6


def test_a_program_that_ends_waits_for_its_asynchronous_writes():
    program = (
        "import sys, time, torch\n"
        "from clary.train.parallel.fsdp.checkpoint.asynchronous import async_save\n"
        "from clary.train.parallel.fsdp.checkpoint.storage import DistributedFileSystemWriter as Writer\n"
        "slow = Writer(sys.argv[1], pre_write_hooks=[lambda: time.sleep(0.5)])\n"
        "async_save({'weight': torch.ones(3)}, storage_writer=slow)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", program, folder], check=True, timeout=40)
        assert [one for one in os.listdir(folder) if one.endswith(".distcp")] == ["__0_0.distcp"]


def test_the_newest_folders_are_kept():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for step in (2, 10, 9, 1):
            (folder / f"step-{step}").mkdir()
            (folder / f"step-{step}" / ".metadata").touch()
        (folder / "logs-3").mkdir()
        (folder / "step-latest").symlink_to(folder / "step-10")
        (folder / "step-0").touch()  # a file, not a folder
        assert limit_num_subdirs(folder, 2, regex=r"step-\d+", log=False) == ["step-1", "step-2"]
        assert sorted(one.name for one in folder.iterdir()) == ["logs-3", "step-0", "step-10", "step-9", "step-latest"]
        assert (folder / "step-10" / ".metadata").exists()
        assert limit_num_subdirs(folder, 1, regex=r"step-", log=False) == ["step-9"]
        assert (folder / "step-10" / ".metadata").exists()
        refused(lambda: limit_num_subdirs(folder, -1), ValueError, "n is -1")


def test_failed_saves_push_no_whole_checkpoint_out():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def save(step, *files):
            (folder / f"step-{step}").mkdir()
            for file in files:
                (folder / f"step-{step}" / file).parent.mkdir(exist_ok=True)
                (folder / f"step-{step}" / file).touch()

        save(5, "__0_0.distcp")
        save(10, "__0_0.distcp", ".metadata")
        save(20, "__0_0.distcp")
        save(30, "tp2-0/__0_0.distcp", "tp2-0/.metadata", "tp2-1/slice.json")
        save(40)
        assert limit_num_subdirs(folder, 2, log=False) == []
        assert limit_num_subdirs(folder, 1, log=False) == ["step-5"]
        save(50, "model.pt")  # of another format: counts
        save(60, ".metadata.tmp")  # may be under way
        assert limit_num_subdirs(folder, 2, log=False) == []
        assert limit_num_subdirs(folder, 1, log=False) == ["step-10", "step-20", "step-30", "step-40"]
        assert sorted(one.name for one in folder.iterdir()) == ["step-50", "step-60"]
        assert limit_num_subdirs(folder, 0, log=False) == ["step-50", "step-60"]


def test_the_state_of_an_optimizer_is_created_without_a_step():
    for make in (
        torch.optim.AdamW,
        torch.optim.Adagrad,
        lambda one: torch.optim.SGD(one, lr=0.1, momentum=0.9, weight_decay=0.5),
        lambda one: torch.optim.Adam(one, weight_decay=0.5),
    ):
        whole, empty = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(0))
        optimizer = make([whole, empty])
        init_optim_state(optimizer, skip_empty_param=True)
        assert whole.tolist() == [1, 1, 1]
        assert whole.grad is None
        assert whole in optimizer.state
        assert float(optimizer.state[whole].get("step", 0)) == 0
        moments = [
            one for key, one in optimizer.state[whole].items() if key != "step" and isinstance(one, torch.Tensor)
        ]
        assert all(not bool(one.any()) for one in moments), optimizer.state[whole]
        assert optimizer.param_groups[0]["lr"] != 0


def test_named_random_states_continue_where_they_stopped():
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(9)
    parts = torch.rand(2), torch.rand(2)
    states = RandomStates()
    torch.manual_seed(5)
    states.add("own", 9)
    with states.fork("own"):
        assert torch.equal(torch.rand(2), parts[0])
    assert torch.equal(torch.rand(2), expected)
    with states.fork("own"):
        assert torch.equal(torch.rand(2), parts[1])
    refused(lambda: states.add("own", 1), ValueError, "is there already")
    refused(lambda: states.fork("other").__enter__(), KeyError, "call add")
