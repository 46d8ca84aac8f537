"""Two simulated accelerators: tensors on the devices `simgpu:0` and `simgpu:1`, whose memory is that of the CPU.

Its kernels are those of the CPU, so results are the same bit for bit. As on a GPU, operations that mix devices fail.
The host waits when it reads a value or copies a tensor to or from the host. `record_operations` counts kernels, reads
and copies with the lines of fedmosaic that caused them.

torch's experimental API for devices in Python registers the device (`register`). A tensor of the device is made from a
CPU tensor through DLPack, with another device type in its header: both share the memory. The kernel of an operation
wraps the memory of its arguments in CPU tensors, calls the operation on them, and returns tensors of the device.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

DEVICE_TYPE = "simgpu"
NUM_DEVICES = 2
DEVICE = f"{DEVICE_TYPE}:0"
DLPACK_CPU, DLPACK_EXTENSION = 1, 12
"""Device types of DLPack."""
DLPACK_DEVICE_OFFSET = 8
"""Bytes before the device in `struct DLTensor`, after the pointer to the data."""
COPY, READ = "_copy_from", "_local_scalar_dense"
SYNCHRONISING = ("nonzero", "masked_select", "_unique2", "unique_dim", "bincount", "equal")
"""Operations whose results have a size that depends on values, or whose result is a Python value: the host waits."""
PACKAGE, TRANSFERS = "fedmosaic_cli", "execution/transfers.py"


class Operations:
    """What was done on the device.

    Attributes:
        kernels: Number of kernels by operation, without views and allocations.
        waits: Number of times the host waited, by cause: `read`, `to host`, `to device`, `between
            devices`, or the name of an operation.
        places: The same by cause and line of fedmosaic.
    """

    def __init__(self) -> None:
        self.kernels: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.places: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def count_kernel(self, name: str) -> None:
        with self._lock:
            self.kernels[name] += 1

    def count_wait(self, cause: str) -> None:
        with self._lock:
            self.waits[cause] += 1
            self.places[cause, calling_line()] += 1


RECORDS: list[Operations] = []


class CaptureContext(threading.local):
    """The graph that this thread captures; see `tests.accelerator.simulated_graph`."""

    graph: Any = None


CAPTURE = CaptureContext()


@contextmanager
def record_operations() -> Iterator[Operations]:
    """Count the operations within this context, in all threads."""
    record = Operations()
    RECORDS.append(record)
    try:
        yield record
    finally:
        RECORDS.remove(record)


def calling_line() -> str:
    """Return the innermost line of fedmosaic on this thread's stack as FILE:LINE, outside the functions that copy."""
    frame = sys._getframe()
    while frame is not None:
        _, separator, path = frame.f_code.co_filename.partition(f"{PACKAGE}/")
        if separator and not path.endswith(TRANSFERS):
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside fedmosaic"


class DeviceModule:
    """What torch asks a module `torch.simgpu`."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return NUM_DEVICES

    def manual_seed_all(self, seed: int) -> None:
        pass

    def _is_in_bad_fork(self) -> bool:
        return False


def missing_api() -> str:
    """Return why this version of torch cannot simulate a device; "" if it can."""
    from torch.utils import backend_registration

    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        return f"torch {torch.__version__} cannot register a device in Python"
    return ""


def register(index: int = 0) -> torch.device:
    """Return a simulated device."""
    register_devices()
    return torch.device(DEVICE_TYPE, index)


@cache
def register_devices() -> None:
    """Register the devices in this process, once."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(DEVICE_TYPE, backend_module=DeviceModule())
    library = torch.library.Library("aten", "IMPL", "PrivateUse1")
    library.impl("as_strided", alias, "PrivateUse1")
    library.impl(COPY, copy_tensor, "PrivateUse1")
    library.impl(READ, read_scalar, "PrivateUse1")
    others = torch.library.Library("_", "IMPL", "PrivateUse1")
    others.fallback(run_on_cpu, "PrivateUse1")
    LIBRARIES.extend([library, others])
    torch.Tensor.__deepcopy__ = deepcopy_tensor
    torch.autograd._engine_run_backward = in_this_thread(torch.autograd._engine_run_backward)


LIBRARIES: list[torch.library.Library] = []
"""torch forgets the kernels of a library when it is collected."""


DEEPCOPY_ON_CPU = torch.Tensor.__deepcopy__


def deepcopy_tensor(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """Copy a tensor. The method of torch allocates memory of the device in C++, which a device in Python cannot."""
    if not is_simulated(tensor):
        return DEEPCOPY_ON_CPU(tensor, memo)
    if id(tensor) not in memo:
        memo[id(tensor)] = tensor.detach().clone()
    return memo[id(tensor)]


def in_this_thread(run_backward: Callable[..., Any]) -> Callable[..., Any]:
    """Run backward passes in the calling thread: torch has no thread for a second device in Python."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autograd.set_multithreading_enabled(False):
            return run_backward(*args, **kwargs)

    return run


def is_simulated(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == DEVICE_TYPE


def relabel(tensor: torch.Tensor, device_type: int, index: int = 0) -> torch.Tensor:
    """Return a tensor with the same memory on another device."""
    capsule = torch._C._to_dlpack(tensor)
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = get_pointer(capsule, b"dltensor") + DLPACK_DEVICE_OFFSET
    ctypes.c_int32.from_address(address).value = device_type
    ctypes.c_int32.from_address(address + 4).value = index
    return torch._C._from_dlpack(capsule)


def to_simulated(tensor: torch.Tensor, index: int) -> torch.Tensor:
    return relabel(tensor, DLPACK_EXTENSION, index)


def to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor with the memory, shape and place of a tensor of the device."""
    if not tensor.numel():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    whole = relabel(alias(tensor.detach(), [size], [1], 0), DLPACK_CPU)
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def alias(tensor: torch.Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> torch.Tensor:
    """Return a view of a tensor of the device."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    return torch.ops.aten.as_strided.default.redispatch(keys, tensor, size, stride, storage_offset)


def copy_tensor(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copy between devices, or on the device."""
    graph = CAPTURE.graph
    if graph:
        graph.begin_call(COPY, source.device != target.device, (target, source), {})
    for record in [] if graph else RECORDS:
        if source.device == target.device:
            record.count_kernel(COPY)
        elif is_simulated(source) and is_simulated(target):
            record.count_wait("between devices")
        else:
            record.count_wait("to host" if is_simulated(source) else "to device")
    into, content = (to_cpu(tensor) if is_simulated(tensor) else tensor for tensor in (target, source))
    into.copy_(content)
    if graph:
        graph.end_call(torch.ops.aten.copy_.default, target)
    return target


def read_scalar(tensor: torch.Tensor) -> Any:
    """Read the value of a tensor with one element."""
    if CAPTURE.graph:
        CAPTURE.graph.begin_call(READ, True, (tensor,), {})
    for record in RECORDS:
        record.count_wait("read")
    return to_cpu(tensor).item()


def run_on_cpu(operation: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Run any other operation."""
    name = operation.name().removeprefix("aten::")
    leaves = tree_leaves((args, kwargs))
    index = require_one_device(name, leaves)
    if kwargs.get("device") is not None:
        index = kwargs["device"].index or 0
        kwargs = {**kwargs, "device": torch.device("cpu")}
    graph, waits = CAPTURE.graph, name.split(".")[0] in SYNCHRONISING
    if graph:
        graph.begin_call(name, waits, args, kwargs)
    on_cpu = tree_map(lambda value: to_cpu(value) if is_simulated(value) else value, (args, kwargs))
    results = operation(*on_cpu[0], **on_cpu[1])
    simulated = [value for value in leaves if is_simulated(value)]
    same = {id(cpu): value for cpu, value in zip(tree_leaves(on_cpu), leaves, strict=True) if is_simulated(value)}
    is_kernel = False

    def wrap(result: object) -> object:
        nonlocal is_kernel
        if not isinstance(result, torch.Tensor):
            return result
        if id(result) in same:
            is_kernel = True
            if same[id(result)].shape != result.shape:  # an empty output that the operation has resized
                same[id(result)].data = to_simulated(result.clone(), index)
            return same[id(result)]
        view = view_of_argument(operation, result, simulated)
        if view is None:
            is_kernel = True
            return to_simulated(result, index)
        return view

    wrapped = tree_map(wrap, results)
    if graph:
        graph.end_call(operation, wrapped)
    for record in [] if graph else RECORDS:
        if is_kernel and not name.startswith("empty"):
            record.count_kernel(name)
        if waits:
            record.count_wait(name)
    return wrapped


def require_one_device(name: str, values: list[Any]) -> int:
    """Return the number of the device of the tensors among these values; 0 without any.

    Raises:
        RuntimeError: Tensors are on several devices, as on a GPU. A number may be on the CPU.
    """
    devices = {
        value.device for value in values if isinstance(value, torch.Tensor) and (is_simulated(value) or value.dim())
    }
    if len(devices) > 1 or not all(device.type == DEVICE_TYPE for device in devices):
        raise RuntimeError(f"{name}: tensors on {' and '.join(sorted(map(str, devices)))}")
    return next(iter(devices)).index if devices else 0


def view_of_argument(
    operation: torch._ops.OpOverload, result: torch.Tensor, arguments: list[torch.Tensor]
) -> torch.Tensor | None:
    """Return the result as a view of the argument whose memory it shares; None if it has separate memory."""
    for argument in arguments:
        if argument.dtype != result.dtype:
            continue
        storage = argument.untyped_storage()
        offset = result.data_ptr() - storage.data_ptr()
        if result.numel() and 0 <= offset < storage.nbytes():
            return alias(argument, result.shape, result.stride(), offset // result.element_size())
        if not result.numel() and any(value.alias_info is not None for value in operation._schema.returns):
            return alias(argument, result.shape, result.stride(), argument.storage_offset())
    return None
