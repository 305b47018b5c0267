"""A launch by one call of the CUDA driver, for a kernel that Triton has compiled and launched before.

Triton's launcher takes its arguments apart at every call. Here they are laid out once, and a call only writes the
addresses of its tensors. The layout is not taken on trust: the kernel's PTX says how many parameters it has and the
driver how large they are (cuFuncGetParamInfo); where they say anything else, Triton launches as before.
"""

from __future__ import annotations

import ctypes
import struct
from functools import cache
from typing import Any

# CUlaunchAttributeID, from the CUDA driver API.
_COOPERATIVE = 2
_PROGRAMMATIC_STREAM_SERIALIZATION = 6
# Triton's names of types, and how a kernel's parameter of that type is laid out. A pointer is 64 bits.
_LAYOUTS = {"i1": "b", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u32": "I", "u64": "Q", "fp32": "f"}
# Scratch memory of the kernel and of the profiler: parameters that Triton adds; null where neither is used.
_SCRATCH = ("*i8", "*i8")
_MOST_STREAMS = 64


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: a kind, and 64 bytes of which the kinds used here take the first int."""

    _fields_ = (("kind", ctypes.c_int), ("_pad", ctypes.c_int), ("value", ctypes.c_int), ("_rest", ctypes.c_char * 60))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("number_of_attributes", ctypes.c_uint),
    )


class DirectLaunch:
    """One kernel, grid and set of plain arguments, to be launched at any addresses."""

    def __init__(self, compiled: Any, grid: tuple[int, int, int], types: list[str], values: list[Any]) -> None:
        """Lay out what does not change.

        Args:
            compiled: Triton's compiled kernel.
            grid: number of programs.
            types: Triton's name of the type of each parameter.
            values: of each parameter, None for the address of a tensor. Those follow each other, call by call.
        """
        meta = compiled.metadata
        self._launch = _driver().cuLaunchKernelEx
        self._function = ctypes.c_void_p(compiled.function)
        kinds = [_COOPERATIVE] * bool(meta.launch_cooperative_grid)
        kinds += [_PROGRAMMATIC_STREAM_SERIALIZATION] * bool(meta.launch_pdl)
        self._attributes = (_Attribute * 2)(*(_Attribute(kind, 0, 1) for kind in kinds))
        self._shape = (*grid, 32 * meta.num_warps, 1, 1, meta.shared)
        self._number_of_attributes = len(kinds)
        self._configs: dict[int, Any] = {}
        self._constants = [
            None if value is None else ctypes.create_string_buffer(struct.pack(_layout(kind), value))
            for kind, value in zip(types, values, strict=True)
        ]
        # A launch takes a set of parameters out, so that threads (and finalizers) do not write to each other's.
        self._spare: list[tuple[Any, Any]] = [self._parameters()]

    def __call__(self, pointers: list[int], stream: int) -> bool:
        """Launch at these addresses on a stream of the current device.

        Returns:
            False if the driver refused, for whatever reason; nothing has been launched then.
        """
        config = self._configs.get(stream) or self._config(stream)
        try:
            parameters = self._spare.pop()
        except IndexError:  # Asking first whether there is one would let another thread take it in between.
            parameters = self._parameters()
        parameters[0][:] = pointers
        # The driver copies parameters and configuration before it returns.
        result = self._launch(config, self._function, parameters[1], None)
        self._spare.append(parameters)
        return result == 0

    def _config(self, stream: int) -> Any:
        if len(self._configs) >= _MOST_STREAMS:
            self._configs.clear()
        attributes = ctypes.addressof(self._attributes)
        config = ctypes.byref(_Config(*self._shape, stream, attributes, self._number_of_attributes))
        self._configs[stream] = config
        return config

    def _parameters(self) -> tuple[Any, Any]:
        """Room for addresses, and the driver's list of where each parameter lies."""
        pointers = (ctypes.c_uint64 * self._constants.count(None))()
        start, width = ctypes.addressof(pointers), ctypes.sizeof(ctypes.c_uint64)
        places = iter(range(start, start + ctypes.sizeof(pointers), width))
        each = [next(places) if one is None else ctypes.addressof(one) for one in self._constants]
        return pointers, (ctypes.c_void_p * len(each))(*each)


def direct_launch(compiled: Any, grid: tuple[int, int, int], arguments: tuple[Any, ...]) -> DirectLaunch | None:
    """How to launch a compiled kernel without Triton, or None where that is not known to be right.

    Args:
        compiled: Triton's compiled kernel, which has been launched once.
        grid: number of programs.
        arguments: one for each of the kernel's parameters, constexprs included; None for each tensor that is passed.
    """
    meta, signature = compiled.metadata, list(compiled.src.signature.values())
    uses_more = meta.num_ctas != 1 or meta.global_scratch_size or meta.profile_scratch_size
    if _driver() is None or uses_more or len(signature) != len(arguments):
        return None
    taken = [(kind, value) for kind, value in zip(signature, arguments, strict=True) if kind != "constexpr"]
    # A pointer for each tensor, a number for everything else.
    known = all(_layout(kind) and (value is not None or kind[0] == "*") for kind, value in taken)
    types, values = [*(kind for kind, _ in taken), *_SCRATCH], [*(value for _, value in taken), 0, 0]
    if not known or _number_of_parameters(compiled.asm["ptx"]) != len(types):
        return None
    if _parameter_sizes(compiled.function, len(types)) != [struct.calcsize(_layout(kind)) for kind in types]:
        return None
    try:
        return DirectLaunch(compiled, grid, types, values)
    except struct.error:
        return None  # A number that does not fit its type, which Triton converts in its own way.


def _layout(kind: str) -> str:
    return "Q" if kind[0] == "*" else _LAYOUTS.get(kind, "")


def _number_of_parameters(ptx: str) -> int:
    """How many parameters the kernel in this PTX has.

    The driver could be asked about one after the other until it refuses. But a refusal is an error of the API, and
    tools that watch for errors report it.
    """
    return ptx.partition(".entry")[2].partition(")")[0].count(".param ")


def _parameter_sizes(function: int, number: int) -> list[int]:
    """Bytes of a kernel's first parameters, as the driver knows them."""
    offset, sizes = ctypes.c_size_t(), [ctypes.c_size_t() for _ in range(number)]
    for place, size in enumerate(sizes):
        where = ctypes.byref(offset), ctypes.byref(size)
        if _driver().cuFuncGetParamInfo(ctypes.c_void_p(function), ctypes.c_size_t(place), *where) != 0:
            return []
    return [size.value for size in sizes]


@cache
def _driver() -> Any:
    """The CUDA driver's library, if it is here and has what is needed (12.4)."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        return library if library.cuLaunchKernelEx and library.cuFuncGetParamInfo else None
    except (OSError, AttributeError):
        return None
