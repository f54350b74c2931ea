"""Scripts that ask for CUDA run on the CPU, where --cuda-as-cpu is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ddpcheck.errors import raised
from ddpcheck.run.script import cuda_as_cpu
from tests.run.script import start

# As scripts are written for torchrun and GPUs.
SCRIPT = """
import inspect
import os
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

assert torch.cuda.is_available(), "needs a GPU"
assert torch.cuda.device_count() == 1
dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
torch.cuda.set_device(f"cuda:{local_rank}")
assert torch.cuda.current_device() == local_rank
torch.cuda.manual_seed_all(1)
torch.backends.cudnn.benchmark = False
device = torch.device("cuda", local_rank)
assert device.type == "cuda"
generator = torch.Generator(device=device).manual_seed(3)
assert isinstance(generator, torch.Generator)
x = torch.randn(8, 4, generator=generator, device=device)
y = torch.zeros(8, dtype=torch.long, device=f"cuda:{local_rank}")
assert x.shape == torch.ones(8, 4).cuda(non_blocking=True).shape
data = TensorDataset(x, y)
loader = DataLoader(data, batch_size=4, pin_memory=True, num_workers=0)
names = inspect.signature(DataLoader.__init__).parameters  # as libraries make it anew
assert {"batch_size", "sampler", "pin_memory"} <= names.keys()
model = nn.Sequential(nn.Linear(4, 4, device="cuda"), nn.Linear(4, 3)).to(device).cuda()
model.to(0)
found = torch.accelerator.current_accelerator()
assert found == torch.device("cuda") and torch.accelerator.is_available()
assert torch.accelerator.device_count() == 1
torch.accelerator.set_device_index(local_rank)
assert torch.accelerator.current_device_index() == local_rank
torch.accelerator.synchronize()
assert torch.cuda.get_device_properties(device=0).total_memory > 0
assert torch.cuda.get_device_capability(device=0) >= (7, 0)
model = DDP(model, device_ids=[local_rank], output_device=local_rank)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
side = torch.cuda.Stream()
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(True)
begin.record()
for x, y in loader:
    x, y = x.to(local_rank, non_blocking=True), y.pin_memory().to(device=device)
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        value = F.cross_entropy(model(x), y)
    with torch.amp.autocast("cuda", enabled=False), torch.device("cuda"):
        value = value + torch.zeros(())
    optimizer.zero_grad()
    scaler.scale(value).backward()
    scaler.step(optimizer)
    scaler.update()
    with torch.cuda.stream(stream=side), torch.cuda.device(device=0):
        x.record_stream(side)
    torch.cuda.current_stream().wait_stream(side)
end.record()
torch.cuda.synchronize()
assert begin.elapsed_time(end) > 0
assert scaler.get_scale() > 1
dist.barrier(device_ids=[local_rank])
torch.save(model.module.state_dict(), "state.pt")
state = torch.load("state.pt", map_location=f"cuda:{local_rank}")
state = torch.load("state.pt", map_location={"cuda:0": "cuda:1"})
model.module.load_state_dict(state)
torch.set_default_device("cuda")
assert torch.ones(1).sum().item() == 1
print(torch.cuda.max_memory_allocated() // 1024, torch.cuda.get_device_name(device))
torch.cuda.empty_cache()
dist.destroy_process_group()
"""


def test_script_for_gpus_runs_on_the_cpu(tmp_path: Path) -> None:
    script, folder = tmp_path / "train.py", tmp_path / "check"
    folder.mkdir()
    script.write_text(SCRIPT, encoding="utf-8")
    done = start.to_its_end(script, folder, cuda_as_cpu=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0 CPU in place of CUDA\n"
    assert "Warning" not in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize(
    "code",
    [
        "torch.zeros(1).cuda()",
        "torch.zeros(1, device='cuda')",
        "torch.nn.BatchNorm1d(1).to('cuda:0')",
        "torch.cuda.set_device(0)",
        "torch.cuda.current_device()",
        "torch.cuda.synchronize()",
        "torch.cuda.Event().record()",
        "torch.Generator(device='cuda')",
        "assert torch.cuda.is_available()",
        "assert torch.cuda.is_available(), 'training needs a GPU'",
    ],
)
def test_error_for_want_of_cuda_is_recognised(code: str) -> None:
    message = None
    try:
        exec(code, {"torch": torch})  # noqa: S102
    except Exception as error:  # noqa: BLE001 (any of them)
        message = str(error)
    assert message is not None
    stack = f'  File "train.py", line 3, in <module>\n    {code}\n'
    assert raised.wants_cuda(message, stack)


@pytest.mark.parametrize(
    "message",
    ["mat1 and mat2 shapes cannot be multiplied", "cudaless", "no such file"],
)
def test_other_error_does_not_want_cuda(message: str) -> None:
    stack = '  File "train.py", line 3, in <module>\n    model(x.cpu())\n'
    assert not raised.wants_cuda(message, stack)


class _OnDevice(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, rows: torch.Tensor) -> torch.Tensor:
        return rows * 3

    @staticmethod
    def backward(_: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad.to("cuda") * torch.full((), 3.0, device="cuda:0")


def test_backward_of_the_scripts_own_functions_runs_on_the_cpu() -> None:
    rows = torch.ones(2, requires_grad=True)
    with cuda_as_cpu.mapped(), cuda_as_cpu.Mode():
        tripled = _OnDevice.apply(rows)  # type: ignore[no-untyped-call]
        tripled.backward(gradient=torch.tensor([1.0, 2.0]))
    assert rows.grad is not None
    assert rows.grad.tolist() == [3.0, 6.0]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("Torch not compiled with CUDA enabled", "x.cuda()"),
        ("module 'torch._C' has no attribute '_cuda_setDevice'", "f()"),
        ("CUDA error: invalid device ordinal", "f()"),
        ("", "assert torch.cuda.is_available()"),
    ],
)
def test_machine_without_cuda_lacks_it(message: str, code: str) -> None:
    assert raised.lacks_cuda(message, f'  File "a.py", line 3, in f\n    {code}\n')


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("NCCL error: unhandled system error", "dist.all_reduce(x)"),
        ("CUDA out of memory", "model(x)"),
        ("", "assert torch.isfinite(loss)"),
    ],
)
def test_fault_of_a_machine_with_cuda_is_not_the_want_of_it(
    message: str, code: str
) -> None:
    stack = f'  File "a.py", line 3, in f\n    {code}\n'
    assert not raised.lacks_cuda(message, stack)
