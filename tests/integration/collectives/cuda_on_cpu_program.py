"""Meaning of CUDA under CLARY_CUDA_ON_CPU=1. Functions `test_...()`; see `torch_programs`."""

import ast
import inspect
import io
import tempfile
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import nn

torch.set_num_threads(1)
CPU = torch.tensor(0).device


def raised(function, *arguments, **keywords):
    try:
        function(*arguments, **keywords)
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller looks at it
        return error
    raise AssertionError("nothing was raised")


def test_devices_are_the_cpu():
    for device in (
        torch.device("cuda"),
        torch.device("cuda:1"),
        torch.device("cuda", 1),
        torch.device(type="cuda", index=0),
        torch.device(0),
        torch.device(torch.device("cuda")),
    ):
        assert device == CPU
        assert isinstance(device, torch.device)
    assert torch.device("meta").type == "meta"
    assert torch.device("cpu") == CPU


def test_factories_make_tensors_on_the_cpu():
    for make in (torch.zeros, torch.ones, torch.empty, torch.rand, torch.randn, torch.arange, torch.eye):
        for device in ("cuda", "cuda:3", 0, torch.device("cuda")):
            assert make(3, device=device).device == CPU
    given = torch.ones(2)
    for made in (
        torch.tensor([1.0], device="cuda"),
        torch.as_tensor([1.0], device="cuda"),
        torch.full((2,), 1, device="cuda"),
        torch.zeros_like(given, device="cuda"),
        given.new_zeros(2, device="cuda"),
        torch.randint(0, 3, (2,), device="cuda:0"),
    ):
        assert made.device == CPU
    assert torch.zeros(2, device="meta").is_meta
    assert torch.empty(2, pin_memory=True).shape == (2,)


def test_tensors_and_modules_moved_to_cuda_stay_on_the_cpu():
    tensor = torch.ones(2, requires_grad=True)
    for moved in (tensor.cuda(), tensor.cuda(1), tensor.to("cuda"), tensor.to(0), tensor.to(torch.device("cuda:0"))):
        assert moved.device == CPU
    assert tensor.to("cuda", torch.float64).dtype is torch.float64
    assert tensor.to(device="cuda", dtype=torch.float16, non_blocking=True).dtype is torch.float16
    assert torch.equal(torch.rand(2).pin_memory() * 0, torch.zeros(2))
    for module in (nn.Linear(2, 2).cuda(), nn.Linear(2, 2).to("cuda"), nn.Linear(2, 2).to(0), nn.LSTM(2, 2).cuda(0)):
        assert next(module.parameters()).device == CPU
    assert nn.Linear(2, 2, device="cuda").weight.device == CPU
    assert nn.Linear(2, 2).to("cuda", dtype=torch.bfloat16).weight.dtype is torch.bfloat16


def test_numbers_and_strings_that_are_no_devices_keep_their_meaning():
    assert torch.zeros(2, 3).sum(0).shape == (3,)
    assert torch.ones(4).to(torch.int64).tolist() == [1, 1, 1, 1]
    assert torch.einsum("cu,ud->cd", torch.ones(1, 2), torch.ones(2, 1)).item() == 2
    assert torch.stack([torch.ones(2)] * 2, 1).shape == (2, 2)


def test_cuda_means_the_cpu_in_threads_too():
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.zeros(1, device="cuda").cuda()))
    thread.start()
    thread.join(10)
    with ThreadPoolExecutor(1) as pool:
        found.append(pool.submit(lambda: torch.ones(1).to("cuda")).result(10))
    assert [one.device for one in found] == [CPU, CPU]


def test_queries_of_a_gpu_are_answered():
    cuda = torch.cuda
    assert cuda.is_available()
    assert cuda.device_count() == 2  # value of LOCAL_WORLD_SIZE
    assert "CPU" in cuda.get_device_name()
    assert cuda.get_device_properties(0).total_memory > 0
    assert cuda.get_device_capability("cuda:0") >= (7, 0)
    assert cuda.is_bf16_supported()
    cuda.set_device(1)
    assert cuda.current_device() == 1
    with cuda.device(0):
        assert cuda.current_device() == 0
    assert cuda.current_device() == 1
    cuda.set_device("cuda:0")
    assert cuda.current_device() == 0
    free, total = cuda.mem_get_info()
    assert 0 < free <= total
    assert cuda.memory_stats()["allocated_bytes.all.peak"] == cuda.max_memory_allocated(0) == 0
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats", "ipc_collect", "init"):
        assert getattr(cuda, name)() is None
    cuda.nvtx.range_push("step")
    cuda.nvtx.range_pop()
    with cuda.nvtx.range("step"):
        pass


def test_the_generator_of_cuda_is_that_of_the_cpu():
    torch.cuda.manual_seed(5)
    state = torch.cuda.get_rng_state()
    first = torch.rand(2, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(2), first)
    states = torch.cuda.get_rng_state_all()
    second = torch.rand(2)
    torch.cuda.set_rng_state_all(states)
    assert torch.equal(torch.rand(2), second)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(2), first)
    with torch.random.fork_rng():
        torch.rand(100)
    assert not torch.equal(torch.rand(2), first)


def test_autocast_precision_is_that_of_the_cpu():
    model = nn.Linear(4, 4).cuda()
    for context in (
        torch.autocast("cuda"),
        torch.autocast(device_type="cuda", dtype=torch.float16),
        torch.amp.autocast("cuda", torch.float16, enabled=True),
    ):
        with context:
            assert model(torch.ones(2, 4)).dtype is torch.bfloat16
    with torch.autocast("cuda", enabled=False):
        assert model(torch.ones(2, 4)).dtype is torch.float32
    scaler = torch.amp.GradScaler()
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    assert model.bias.grad[0] == 2 * scaler.get_scale()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler.unscale_(optimizer)
    assert model.bias.grad[0] == 2
    model.bias.grad[0] = float("inf")
    before = model.weight.clone()
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(torch.zeros(1, device="cuda"))
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model.weight, before)  # an infinite gradient is skipped


def test_files_are_loaded_to_the_cpu_for_every_map_location():
    file = io.BytesIO()
    torch.save({"weight": torch.ones(2)}, file)
    for place in (
        "cuda",
        "cuda:0",
        0,
        torch.device("cuda"),
        {"cuda:0": "cuda:1"},
        None,
        lambda storage, _: storage.cuda(),
    ):
        file.seek(0)
        assert torch.load(file, map_location=place)["weight"].device == CPU
    file.seek(0)
    assert torch.load(file, "cuda")["weight"].device == CPU


def test_a_default_device_of_cuda_is_the_cpu():
    torch.set_default_device("cuda")
    assert torch.zeros(1).device == CPU
    torch.set_default_device(None)
    torch.set_default_tensor_type("torch.cuda.DoubleTensor")
    assert torch.zeros(1).dtype is torch.float64
    torch.set_default_tensor_type(torch.cuda.FloatTensor)
    assert torch.zeros(1).dtype is torch.float32


def test_functions_of_torch_stay_builtin_and_can_be_scripted():
    @torch.jit.script
    def doubled(value: torch.Tensor) -> torch.Tensor:
        return value * 2 + torch.zeros(1)

    assert doubled(torch.ones(1).cuda()).item() == 2
    assert type(torch.zeros) is type(len)  # builtin, not wrapped


def test_compiled_functions_and_models_run():
    from torch._dynamo.trace_rules import get_torch_obj_rule_map

    get_torch_obj_rule_map()  # some libraries load this table, which rejects two names for one function

    @torch.compile
    def first(value):
        return value.to("cuda") * 2

    @torch.compile(mode="max-autotune")
    def second(value):
        return value + torch.ones(2, device="cuda")

    model = torch.compile(nn.Linear(2, 2).cuda())
    model.compile()
    assert first(second(torch.ones(2))).tolist() == [4, 4]
    assert model(torch.ones(2)).shape == (2,)


def test_checkpointing_and_dropout_work():
    from torch.utils.checkpoint import checkpoint

    layer = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).cuda()
    value = torch.ones(2, 4, device="cuda", requires_grad=True)
    with torch.autocast("cuda"):
        checkpoint(layer, value, use_reentrant=False).sum().backward()
    assert value.grad.shape == (2, 4)


def test_activation_offloading_runs_its_gpu_path():
    # Without a GPU, streams and events are rehearsed, and the restored tensors are compared.
    from clary.train.parallel.memory.kept import OffloadCounts, PinnedCopy, SpilledTensor
    from clary.train.parallel.memory.spill import Spill

    tensor = torch.randn(64, 32)[:, ::2].t()
    with tempfile.TemporaryDirectory() as folder:
        spill = Spill(Path(folder), max_waiting_bytes=1 << 20)
        spilled = SpilledTensor(tensor, spill, OffloadCounts(), torch.cuda.Stream())
        spill._writer.submit(lambda: None).result(20)
        assert spilled._original is None
        for kept in (PinnedCopy(tensor, torch.cuda.Stream()), spilled):
            kept.load()
            for _ in range(2):
                found = kept.bring()
                assert torch.equal(found, tensor)
                assert found.stride() == tensor.stride()
        spill.close()


def test_functions_without_a_meaning_on_the_cpu_raise_with_their_name():
    for name in ("CUDAGraph", "graph", "MemPool", "graph_pool_handle", "make_graphed_callables"):
        assert f"CLARY_CUDA_ON_CPU=1: torch.cuda.{name} has" in str(raised(getattr(torch.cuda, name), None))


def test_a_refused_function_shows_what_it_wraps():
    assert "torch.cuda.use_mem_pool has" in str(raised(torch.cuda.use_mem_pool, None))
    assert inspect.isgeneratorfunction(inspect.unwrap(torch.cuda.use_mem_pool))  # torch 2.14's compiler reads it


def test_classes_of_torch_cuda_stay_classes():
    found = 0
    for file in Path(torch.cuda.__file__).parent.glob("*.py"):
        nodes = ast.parse(file.read_text()).body
        for name in (node.name for node in nodes if isinstance(node, ast.ClassDef) and node.name[0] != "_"):
            if hasattr(torch.cuda, name):
                found += 1
                assert isinstance(getattr(torch.cuda, name) | None, types.UnionType), name
    assert found > 10
    assert isinstance(torch.cuda.current_stream(), torch.Stream)
    assert isinstance(torch.cuda.Event(), torch.Event)
    assert torch.cuda.streams.Stream is torch.cuda.Stream


def test_cuda_has_versions_and_generators():
    assert float(torch.version.cuda) >= 11
    assert torch.cuda.nccl.version() >= (2, 10)
    assert torch.backends.cudnn.version() > 0
    generator = torch.Generator("cuda").manual_seed(3)
    assert torch.randn(2, generator=generator, device="cuda").device == CPU
    assert isinstance(torch.default_generator, torch.Generator)
    assert torch.cuda.default_generators[0] is torch.default_generator


def test_cuda_means_the_cpu_in_backward_hooks_too():
    found = []
    value = torch.ones(2, requires_grad=True)
    value.register_hook(lambda gradient: found.append(torch.empty(2, device="cuda").device))
    (value * 2).sum().backward()
    torch.autograd.grad((value * 2).sum(), [value])
    assert found == [CPU, CPU]


def test_fsdp_accepts_a_cuda_device_and_returns_full_states():
    from torch import distributed
    from torch.distributed import fsdp

    with tempfile.TemporaryDirectory() as folder:
        distributed.init_process_group("nccl", init_method=f"file://{folder}/store", rank=0, world_size=1)
        sharded = fsdp.FullyShardedDataParallel
        for options in ({"device_id": torch.cuda.current_device()}, {"cpu_offload": fsdp.CPUOffload(True)}, {}):
            model = sharded(
                nn.Linear(4, 4),
                sync_module_states=True,
                sharding_strategy=fsdp.ShardingStrategy.FULL_SHARD,
                **options,
            )
            model(torch.ones(1, 4).cuda()).sum().backward()
            whole = fsdp.FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
            with sharded.state_dict_type(model, fsdp.StateDictType.FULL_STATE_DICT, whole):
                assert model.state_dict()["weight"].shape == (4, 4)
        distributed.destroy_process_group()
