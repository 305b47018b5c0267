"""The smallest Triton kernel: proof that Triton interprets, compiles and, where there is a GPU, runs here."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget

from kernels.launch import interpreter, launch

# One target of each maker; neither GPU has to be here.
TARGETS = {"sm_90": GPUTarget("cuda", 90, 32), "gfx942": GPUTarget("hip", "gfx942", 64)}


@triton.jit
def _add_one(x_ptr):  # type: ignore[no-untyped-def]
    tl.store(x_ptr, tl.load(x_ptr) + 1)


def add_one(value: float, device: torch.device) -> float:
    """One more than the value, reckoned by a kernel.

    Args:
        value: any float32.
        device: a GPU, or the CPU for Triton's interpreter.
    """
    x = torch.tensor([value], dtype=torch.float32, device=device)
    with interpreter(device.type == "cpu"):
        launch(_add_one, (1,), x, device=x.device)
    return x.item()


def code_bytes(target: str) -> int:
    """Size of the kernel's machine code in bytes.

    Args:
        target: a key of ``TARGETS``.
    """
    source = triton.compiler.ASTSource(fn=_add_one, signature={"x_ptr": "*fp32"}, constexprs={})
    compiled = triton.compile(source, target=TARGETS[target])
    return len(compiled.asm["hsaco" if TARGETS[target].backend == "hip" else "cubin"])
