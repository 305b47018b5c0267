"""Compile a Triton kernel for GPUs that are not here, and read what it needs."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
# Where a kernel may start before the one before it has ended; see kernels.launch.early_start.
STARTS_EARLY = {"sm_90", "sm_100"}


@dataclass(frozen=True)
class Compiled:
    """Machine code of one kernel for one target.

    Attributes:
        registers: per thread.
        spills: bytes per thread that did not fit (NVIDIA: local memory beyond the stack frame that was asked for).
        shared: bytes of shared memory per program.
        asm: every stage of the compilation as Triton keeps it (ttir, ttgir, ptx, amdgcn, ...).
    """

    registers: int
    spills: int
    shared: int
    asm: dict[str, Any]


def compile_for(
    target: str, kernel: Any, signature: dict[str, str], constexprs: dict[str, Any], **options: Any
) -> Compiled:
    """Compile for a target by name.

    Args:
        target: a key of ``TARGETS``.
        kernel: the ``@triton.jit`` or ``@gluon.jit`` function.
        signature: type of every argument, ``"constexpr"`` for constants. A type that ends in ``":16"`` promises that
            the value is a multiple of 16, as Triton finds at run time.
        constexprs: value of every constant.
        **options: ``num_warps`` and the like.
    """
    names = list(signature)
    attrs = {(names.index(n),): [["tt.divisibility", 16]] for n, t in signature.items() if t.endswith(":16")}
    plain = {name: kind.removesuffix(":16") for name, kind in signature.items()}
    source_class = _gluon_source() if kernel.is_gluon() else triton.compiler.ASTSource
    source = source_class(fn=kernel, signature=plain, constexprs=constexprs, attrs=attrs)
    compiled = triton.compile(source, target=TARGETS[target], options=options)
    read = _amd_usage if "hsaco" in compiled.asm else _nvidia_usage
    registers, spills = read(compiled)
    return Compiled(registers, spills, compiled.metadata.shared, dict(compiled.asm))


def _gluon_source() -> Any:
    # Not exported, and Gluon is experimental: only a test of a Gluon kernel should depend on it.
    from triton.experimental.gluon._runtime import GluonASTSource

    return GluonASTSource


def _nvidia_usage(compiled: Any) -> tuple[int, int]:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        text = subprocess.run(
            [str(tool), "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert found, text
    return int(found[1]), int(found[2])


def _amd_usage(compiled: Any) -> tuple[int, int]:
    text = compiled.asm["amdgcn"]
    registers = re.search(r"\.vgpr_count:\s+(\d+)", text)
    spills = re.search(r"\.vgpr_spill_count:\s+(\d+)", text)
    if registers is None or spills is None:
        raise ValueError("no resource usage in the AMD assembly")
    return int(registers[1]), int(spills[1])
