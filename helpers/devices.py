"""How many GPUs an experiment needs, and whose memory an address is."""

from __future__ import annotations

import ctypes
from functools import cache

import torch

# From cuda.h: CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL and CU_MEMORYTYPE_HOST.
_MEMORY_TYPE, _DEVICE_ORDINAL, _HOST = 2, 9, 1


def has_gpus(wanted: int) -> bool:
    """Whether this machine has so many GPUs; says so where it has fewer."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count < wanted:
        needed = f"{wanted} GPUs" if wanted > 1 else "a GPU"
        print(f"This needs {needed}, and this machine has {count or 'none'}: not shown. The text says what to expect.")
    return count >= wanted


def owner(address: int) -> str:
    """Ask the CUDA driver whose memory an address is, as Triton does for every pointer before a launch.

    Args:
        address: as ``tensor.data_ptr()`` gives it.

    Returns:
        The GPU, or "pinned host memory". An address that the driver did not give out, such as that of an ordinary CPU
        tensor, is "unknown to the driver".
    """
    driver = _driver()
    if driver is None:
        return "no CUDA driver to ask"
    kind, ordinal = ctypes.c_uint(), ctypes.c_int()
    if driver.cuPointerGetAttribute(ctypes.byref(kind), _MEMORY_TYPE, ctypes.c_uint64(address)) != 0:
        return "unknown to the driver"
    if kind.value == _HOST:
        return "pinned host memory"
    driver.cuPointerGetAttribute(ctypes.byref(ordinal), _DEVICE_ORDINAL, ctypes.c_uint64(address))
    return f"memory of cuda:{ordinal.value}"


@cache
def _driver() -> ctypes.CDLL | None:
    """The CUDA driver's library, ready to be asked."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return driver if driver.cuInit(0) == 0 else None
