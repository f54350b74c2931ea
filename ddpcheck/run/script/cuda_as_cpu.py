"""`--cuda-as-cpu`: a script that asks for CUDA runs on the CPU, on any machine.

`Mode` sends what names a CUDA device to the CPU: `to`, `cuda`, factory functions,
`pin_memory`. `mapped` replaces what is no function on tensors: torch.cuda, autocast,
GradScaler, torch.load, Generator, and in torch.distributed what names devices or nccl.
A `torch.device("cuda")` stays one, so that the script takes its way for CUDA.

A script finds CUDA in torch.accelerator too; torch itself, which asks it, finds none.

Limits: tensors are on the CPU and say so (`is_cuda`, `device`). Threads of the script's
own are not mapped. Kernels that are written for CUDA (triton, extensions, CUDA graphs),
`torch.cuda.FloatTensor` and FSDP1's `device_id` fail as without the option.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

CPU = torch.device("cpu")
_BYTES = 80 << 30  # of the device that is not there
_NAME = "CPU in place of CUDA"

Function = Callable[..., Any]


def on_cpu(device: Any) -> Any:
    """Returns the CPU for what names a CUDA device, as an index does; else itself."""
    if isinstance(device, torch.device):
        return CPU if device.type == "cuda" else device
    if isinstance(device, str):
        return "cpu" if device.partition(":")[0] == "cuda" else device
    is_index = isinstance(device, int) and not isinstance(device, bool)
    return CPU if is_index else device


class Mode(TorchFunctionMode):
    """Runs on the CPU what a call wants on a CUDA device, in this thread."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Calls the function with the CPU in place of each CUDA device."""
        del types
        kwargs = dict(kwargs or {})
        if func in (Tensor.cuda, Tensor.pin_memory):
            return args[0]
        if func is Tensor.to:
            args = (args[0], *map(on_cpu, args[1:2]), *args[2:])
        if "device" in kwargs:
            kwargs["device"] = on_cpu(kwargs["device"])
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return func(*args, **kwargs)


@contextlib.contextmanager
def mapped(devices: int = 0) -> Iterator[None]:
    """Replaces, within the context, what asks for CUDA without a tensor.

    `devices`: how many there are, by default one for each process.
    """
    if getattr(torch.cuda, "get_device_properties", None) is _properties:
        # Since an earlier start of the script, but for a class that the check itself
        # puts back when it has wrapped the model.
        own = DistributedDataParallel
        with _set(own, "__init__", _ddp(own.__init__)):
            yield
        return
    with contextlib.ExitStack() as stack:
        cuda = _cuda(devices)
        for owner, replacements in (
            (torch.cuda, cuda),
            (getattr(torch, "accelerator", None), _accelerator(cuda)),
            (torch.cuda.nvtx, _returning(None, "mark", "range_push", "range_pop")),
        ):
            for name, value in replacements.items():
                if hasattr(owner, name):
                    stack.enter_context(_set(owner, name, value))
        for owner, name, make in _MADE:
            if hasattr(owner, name):
                before = getattr(owner, name)
                made = functools.wraps(before, updated=())(make(before))
                stack.enter_context(_set(owner, name, made))
        yield


@contextlib.contextmanager
def _set(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _no(*_: Any, **__: Any) -> None:
    """Does nothing, for what a CPU has no need of."""


def _returning(value: Any, *names: str) -> dict[str, Any]:
    """Returns a function for each name: torch's compiler refuses one for two names."""
    return {name: (lambda *_, **__: value) for name in names}


class Stream(contextlib.nullcontext[None]):
    """A stream of the CPU: all that is put on it has run."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    synchronize = wait_event = wait_stream = _no

    def query(self) -> bool:
        """Returns whether all has run."""
        return True

    def record_event(self, event: Event | None = None) -> Event:
        """Returns an event that has happened."""
        event = event or Event()
        event.record()
        return event


class Event:
    """A point in time, at which it was recorded."""

    synchronize = wait = _no

    def __init__(self, *_: Any, **__: Any) -> None:
        self.at_s = 0.0

    def record(self, *_: Any, **__: Any) -> None:
        """Takes the time."""
        self.at_s = time.perf_counter()

    def query(self) -> bool:
        """Returns whether it has happened."""
        return True

    def elapsed_time(self, end: Event) -> float:
        """Returns the milliseconds until another event."""
        return 1000 * (end.at_s - self.at_s)


class _Index(contextlib.nullcontext[None]):
    """torch.cuda.device(...), the context of a device."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()


def _properties(*_: Any, **__: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        name=_NAME, major=8, minor=0, total_memory=_BYTES, multi_processor_count=1
    )


def _accelerator(cuda: dict[str, Any]) -> dict[str, Any]:
    """Returns what takes the place of names of torch.accelerator."""
    same = (
        *("is_available", "device_count", "synchronize", "current_stream"),
        *("set_stream", "empty_cache", "memory_stats", "reset_peak_memory_stats"),
        *("memory_allocated", "max_memory_allocated"),
        *("memory_reserved", "max_memory_reserved"),
    )
    found = {
        **{name: cuda[name] for name in same},
        "current_accelerator": lambda *_, **__: torch.device("cuda"),
        "set_device_index": cuda["set_device"],
        "set_device_idx": cuda["set_device"],
        "current_device_index": cuda["current_device"],
        "current_device_idx": cuda["current_device"],
        "device_index": _Index,
    }
    own = getattr(torch, "accelerator", None)
    return {
        name: _for_scripts(getattr(own, name), value)
        for name, value in found.items()
        if hasattr(own, name)
    }


def _for_scripts(own: Function, other: Function) -> Function:
    def asked(*args: Any, **kwargs: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__"))  # noqa: SLF001
        is_torch = caller.partition(".")[0] == "torch"
        return (own if is_torch else other)(*args, **kwargs)

    return asked


def _cuda(devices: int) -> dict[str, Any]:
    """Returns what takes the place of names of torch.cuda."""
    current = [int(os.environ.get("LOCAL_RANK", "0"))]

    def set_device(device: Any) -> None:
        if isinstance(device, str):
            device = torch.device(device)
        number = getattr(device, "index", device)
        current[0] = 0 if number is None else int(number)

    no = (
        *("synchronize", "empty_cache", "ipc_collect", "init", "set_stream"),
        *("manual_seed", "manual_seed_all", "seed", "seed_all"),
        *("set_rng_state", "set_rng_state_all", "set_per_process_memory_fraction"),
        *("reset_peak_memory_stats", "reset_max_memory_allocated"),
        *("reset_accumulated_memory_stats", "reset_max_memory_cached"),
    )
    zero = (
        *("memory_allocated", "max_memory_allocated", "memory_reserved"),
        *("max_memory_reserved", "memory_cached", "max_memory_cached"),
        *("utilization", "memory_usage", "initial_seed"),
    )
    return {
        **_returning(None, *no),
        **_returning(0, *zero),
        "is_available": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "is_current_stream_capturing": lambda: False,
        "device_count": lambda: devices or int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        "current_device": lambda: current[0],
        "set_device": set_device,
        "get_device_name": lambda *_, **__: _NAME,
        "get_device_capability": lambda *_, **__: (8, 0),
        "get_device_properties": _properties,
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "mem_get_info": lambda *_, **__: (_BYTES, _BYTES),
        "memory_stats": lambda *_, **__: {},
        "memory_summary": lambda *_, **__: "",
        "Stream": Stream,
        "Event": Event,
        "stream": lambda *_, **__: contextlib.nullcontext(),
        "current_stream": lambda *_, **__: Stream(),
        "default_stream": lambda *_, **__: Stream(),
        "device": _Index,
        "device_of": lambda *_, **__: _Index(),
    }


def _in_mode(function: Function) -> Function:
    """Maps what the script's autograd functions and hooks do in a backward.

    torch takes the mode away where it calls it for the backward.
    """

    def calling(*args: Any, **kwargs: Any) -> Any:
        with Mode():
            return function(*args, **kwargs)

    return calling


def _at(place: int, keyword: str) -> Callable[[Function], Function]:
    """Names the CPU in one argument of a function."""

    def make(function: Function) -> Function:
        def calling(*args: Any, **kwargs: Any) -> Any:
            if len(args) > place:
                args = (*args[:place], on_cpu(args[place]), *args[place + 1 :])
            elif keyword in kwargs:
                kwargs[keyword] = on_cpu(kwargs[keyword])
            return function(*args, **kwargs)

        return calling

    return make


def _without(**ignored: Any) -> Callable[[Function], Function]:
    """Gives arguments that are passed by keyword other values."""

    def make(function: Function) -> Function:
        def calling(*args: Any, **kwargs: Any) -> Any:
            kwargs |= {name: ignored[name] for name in ignored if name in kwargs}
            return function(*args, **kwargs)

        return calling

    return make


def _ddp(init: Function) -> Function:
    def of_cpu(wrapper: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        for place, name in enumerate(("device_ids", "output_device")):
            kwargs.pop(name, None)
            args = (*args[:place], None, *args[place + 1 :]) if args[place:] else args
        init(wrapper, module, *args, **kwargs)

    return of_cpu


def _data_parallel(_: Function) -> Function:
    def of_cpu(wrapper: Any, module: nn.Module, *_: Any, **__: Any) -> None:
        """Calls the module itself, as torch's does without a GPU."""
        nn.Module.__init__(wrapper)
        wrapper.module, wrapper.device_ids = module, []

    return of_cpu


def _grad_scaler(init: Function) -> Function:
    def of_cpu(scaler: Any, device: Any = "cuda", *args: Any, **kwargs: Any) -> None:
        init(scaler, on_cpu(device), *args, **kwargs)

    return of_cpu


def _load(load: Function) -> Function:
    def of_cpu(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(map_location, dict):
            map_location = {k: on_cpu(v) for k, v in map_location.items()}
        elif not callable(map_location):
            map_location = on_cpu(map_location) or CPU
        return load(f, map_location, *args, **kwargs)

    return of_cpu


def _generator(original: Any) -> Any:
    class Kind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

    class Generator(metaclass=Kind):
        """torch.Generator, of the CPU."""

        def __new__(cls, device: Any = "cpu") -> Any:
            return original(on_cpu(device))

    return Generator


def _new_group(function: Function) -> Function:
    def of_gloo(ranks: Any = None, timeout: Any = None, *_: Any, **kwargs: Any) -> Any:
        kwargs.pop("backend", None)
        kwargs.pop("device_id", None)
        return function(ranks, timeout, **kwargs)

    return of_gloo


def _tensor_type(function: Function) -> Function:
    def of_cpu(kind: Any) -> None:
        function(kind.replace(".cuda", "") if isinstance(kind, str) else kind)

    return of_cpu


_MADE: tuple[tuple[Any, str, Callable[[Function], Any]], ...] = (
    (Tensor, "record_stream", lambda _: _no),
    (nn.Module, "to", _at(1, "device")),  # which reads an index itself
    (torch.autocast, "__init__", _at(1, "device_type")),
    (torch.amp.GradScaler, "__init__", _grad_scaler),
    (torch, "load", _load),
    (torch, "Generator", _generator),
    (torch, "set_default_device", _at(0, "device")),
    (torch, "set_default_tensor_type", _tensor_type),
    (DataLoader, "__init__", _without(pin_memory=False, pin_memory_device="")),
    (DistributedDataParallel, "__init__", _ddp),
    (nn.DataParallel, "__init__", _data_parallel),
    (dist, "barrier", _without(device_ids=None)),
    (dist, "init_device_mesh", _at(0, "device_type")),
    (dist.device_mesh, "init_device_mesh", _at(0, "device_type")),
    (dist, "new_group", _new_group),
    (dist, "is_nccl_available", lambda _: lambda: True),
    (torch.autograd, "_engine_run_backward", _in_mode),
    (torch.autograd.graph, "_engine_run_backward", _in_mode),
)
