"""A launch without Triton: made only where the driver agrees on the parameters, and with the right ones."""

from __future__ import annotations

import ctypes
import math
import struct
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget

from helpers import topology
from helpers.atlas import spec, specs
from helpers.calls import Call
from helpers.reproduce import run_against_reference
from kernels import direct, known_calls
from kernels import launch as launch_module
from kernels.direct import DirectLaunch, direct_launch
from kernels.launch import Launched

SIGNATURE = {
    "x": "*fp32",
    "n": "i32",
    "wide": "i64",
    "scale": "fp32",
    "flag": "i1",
    "out": "*bf16",
    "BLOCK": "constexpr",
}
ARGUMENTS = (None, -7, 2**40, 0.5, True, None, 64)
SIZES = [8, 4, 8, 4, 1, 8, 8, 8]


class Driver:
    """Stands for the CUDA driver: says which parameters a kernel has, and reads those of a launch."""

    def __init__(self, sizes: list[int], result: int = 0) -> None:
        self.sizes, self.result = sizes, result
        self.launches: list[SimpleNamespace] = []

    def cuFuncGetParamInfo(self, function: Any, place: Any, offset: Any, size: Any) -> int:  # noqa: N802
        assert function.value == 0x1234
        # compute-sanitizer would report the error.
        assert place.value < len(self.sizes), "the driver is asked about a parameter that there is not"
        size._obj.value = self.sizes[place.value]
        return 0

    def cuLaunchKernelEx(self, config: Any, function: Any, parameters: Any, extra: Any) -> int:  # noqa: N802
        assert extra is None
        assert function.value == 0x1234
        config = config._obj
        attributes = (direct._Attribute * config.number_of_attributes).from_address(config.attributes)
        self.launches.append(
            SimpleNamespace(
                grid=(config.grid_x, config.grid_y, config.grid_z),
                block=(config.block_x, config.block_y, config.block_z),
                shared=config.shared,
                stream=config.stream,
                attributes=[(one.kind, one.value) for one in attributes],
                parameters=[ctypes.string_at(at, size) for at, size in zip(parameters, self.sizes, strict=True)],
            )
        )
        return self.result


def compiled(signature: dict[str, str] = SIGNATURE, parameters: int = len(SIZES), **metadata: Any) -> Any:
    """Stands for what Triton has compiled."""
    ptx = ".version 8.7\n.visible .entry kernel(\n" + ",\n".join([".param .u64 x"] * parameters) + "\n)\n{ .param }"
    usual = {"num_ctas": 1, "global_scratch_size": 0, "profile_scratch_size": 0, "num_warps": 4, "shared": 4096}
    usual |= {"launch_cooperative_grid": False, "launch_pdl": False}
    return SimpleNamespace(
        function=0x1234,
        metadata=SimpleNamespace(**usual | metadata),
        src=SimpleNamespace(signature=signature),
        asm={"ptx": ptx},
    )


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Driver]:
    def install(sizes: list[int] = SIZES, result: int = 0) -> Driver:
        fake = Driver(sizes, result)
        monkeypatch.setattr(direct, "_driver", lambda: fake)
        return fake

    return install


def test_parameters_are_those_of_the_kernel(driver: Callable[..., Driver]) -> None:
    fake = driver()
    again = direct_launch(compiled(), (5, 6, 7), ARGUMENTS)
    assert again is not None
    assert again([0x7F0000000010, 2**63 + 32], 99)
    assert again([48, 64], 99)
    first, second = fake.launches
    assert (first.grid, first.block, first.shared, first.stream) == ((5, 6, 7), (128, 1, 1), 4096, 99)
    assert first.attributes == []
    forms = ["Q", "i", "q", "f", "b", "Q", "Q", "Q"]
    read = [struct.unpack(form, value)[0] for form, value in zip(forms, first.parameters, strict=True)]
    assert read == [0x7F0000000010, -7, 2**40, 0.5, 1, 2**63 + 32, 0, 0]
    read = [struct.unpack(form, value)[0] for form, value in zip(forms, second.parameters, strict=True)]
    assert read == [48, -7, 2**40, 0.5, 1, 64, 0, 0]


def test_a_float_out_of_range_is_infinite_as_in_c(driver: Callable[..., Driver]) -> None:
    fake = driver()
    again = direct_launch(compiled(), (1, 1, 1), (*ARGUMENTS[:3], -1e300, *ARGUMENTS[4:]))
    assert again is not None
    assert again([16, 32], 0)
    assert struct.unpack("f", fake.launches[0].parameters[3]) == (-math.inf,)


@pytest.mark.parametrize(
    ("metadata", "attributes"),
    [({"launch_pdl": True}, [(6, 1)]), ({"launch_pdl": True, "launch_cooperative_grid": True}, [(2, 1), (6, 1)])],
    ids=["early start", "and cooperative"],
)
def test_attributes_of_a_launch(
    metadata: dict[str, bool], attributes: list[tuple[int, int]], driver: Callable[..., Driver]
) -> None:
    fake = driver()
    again = direct_launch(compiled(**metadata), (1, 1, 1), ARGUMENTS)
    assert again is not None
    assert again([16, 32], 0)
    assert fake.launches[0].attributes == attributes


def test_structures_are_laid_out_as_in_the_drivers_header() -> None:
    assert ctypes.sizeof(direct._Attribute) == 72
    assert direct._Attribute.value.offset == 8
    offsets = [getattr(direct._Config, name).offset for name in ("stream", "attributes", "number_of_attributes")]
    assert offsets == [32, 40, 48]
    assert ctypes.sizeof(direct._Config) == 56


REFUSED: dict[str, tuple[Any, tuple[Any, ...], list[int]]] = {
    "the kernel has one parameter more": (compiled(parameters=9), ARGUMENTS, [*SIZES, 8]),
    "the kernel has one parameter less": (compiled(parameters=7), ARGUMENTS, SIZES[:-1]),
    "the driver knows other sizes": (compiled(), ARGUMENTS, [8, 8, *SIZES[2:]]),
    "clusters": (compiled(num_ctas=2), ARGUMENTS, SIZES),
    "scratch memory": (compiled(global_scratch_size=128), ARGUMENTS, SIZES),
    "scratch memory of a profiler": (compiled(profile_scratch_size=128), ARGUMENTS, SIZES),
    "a type that is not known": (compiled({**SIGNATURE, "n": "tensordesc<fp32[64]>"}), ARGUMENTS, SIZES),
    "an argument too many": (compiled(), (*ARGUMENTS, 1), SIZES),
    "a number where a tensor was": (compiled({**SIGNATURE, "n": "*i32"}), ARGUMENTS, [8, 8, *SIZES[2:]]),
    "a tensor where a number was": (compiled({**SIGNATURE, "x": "i64"}), ARGUMENTS, SIZES),
    "a number that does not fit": (compiled(), (None, 2**31, *ARGUMENTS[2:]), SIZES),
}


@pytest.mark.parametrize("why", REFUSED)
def test_where_it_is_not_known_to_be_right_there_is_none(why: str, driver: Callable[..., Driver]) -> None:
    kernel, arguments, sizes = REFUSED[why]
    fake = driver(sizes)
    assert direct_launch(kernel, (1, 1, 1), arguments) is None
    assert fake.launches == []


def test_where_the_driver_will_not_say_there_is_none(
    driver: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = driver()
    monkeypatch.setattr(fake, "cuFuncGetParamInfo", lambda *arguments: 1)
    assert direct_launch(compiled(), (1, 1, 1), ARGUMENTS) is None


def test_without_a_driver_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "_driver", lambda: None)
    assert direct_launch(compiled(), (1, 1, 1), ARGUMENTS) is None


def test_streams_are_told_apart_and_forgotten(driver: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch) -> None:
    fake = driver()
    monkeypatch.setattr(direct, "_MOST_STREAMS", 3)
    again = direct_launch(compiled(), (1, 1, 1), ARGUMENTS)
    assert again is not None
    for stream in (0, 11, 22, 33, 0, 11):
        assert again([16, 32], stream)
        assert len(again._configs) <= 3
    assert [one.stream or 0 for one in fake.launches] == [0, 11, 22, 33, 0, 11]


def test_a_launch_inside_a_launch_has_parameters_of_its_own(driver: Callable[..., Driver]) -> None:
    fake = driver()
    again = direct_launch(compiled(), (1, 1, 1), ARGUMENTS)
    assert again is not None
    plain, inner = fake.cuLaunchKernelEx, [[48, 64]]

    def interrupted(*arguments: Any) -> int:
        if inner:
            again(inner.pop(), 0)
        return plain(*arguments)

    again._launch = interrupted
    assert again([16, 32], 0)
    assert [struct.unpack("Q", one.parameters[0])[0] for one in fake.launches] == [48, 16]


def test_threads_do_not_write_to_each_others_parameters(driver: Callable[..., Driver]) -> None:
    fake = driver()
    again = direct_launch(compiled(), (1, 1, 1), ARGUMENTS)
    assert again is not None
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            done = list(threads.map(lambda n: again([16 * n, 16 * n + 8], n % 50), range(1, 4001)))
    finally:
        sys.setswitchinterval(interval)
    assert done == [True] * 4000
    seen = sorted(struct.unpack("Q", one.parameters[0])[0] for one in fake.launches)
    assert seen == [16 * n for n in range(1, 4001)]
    assert all(
        struct.unpack("Q", one.parameters[5])[0] == struct.unpack("Q", one.parameters[0])[0] + 8
        for one in fake.launches
    )


class Kernel(SimpleNamespace):
    """Stands for a compiled kernel that Triton launches."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *arguments, stream: self.launched.append(("public", arguments))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> tuple[Launched, list[Any]]:
    """A launch that was made on stand-ins of tensors, and what Triton launches after it."""
    monkeypatch.setattr(launch_module, "_current_device", lambda: 0)
    monkeypatch.setattr(launch_module, "_current_stream", lambda index: 7)
    calls: list[Any] = []
    kernel = Kernel(**vars(compiled()), packed_metadata=(), launched=calls)
    kernel.run = lambda *arguments: calls.append(("run", arguments[9:]))
    x, out = torch.zeros(4), torch.zeros(4, dtype=torch.bfloat16)
    return Launched(kernel, (1, 1, 1), (x, *ARGUMENTS[1:5], out, 64), 0), calls


def test_a_launch_made_again_needs_no_triton(
    launched: tuple[Launched, list[Any]], driver: Callable[..., Driver]
) -> None:
    fake = driver()
    once, calls = launched
    once.again([16, 32])
    once.again([48, 64])
    assert calls == []
    assert [one.stream for one in fake.launches] == [7, 7]
    assert [struct.unpack("Q", one.parameters[5])[0] for one in fake.launches] == [32, 64]


@pytest.mark.parametrize("why", ["the driver refuses", "the driver knows other sizes", "a profiler listens"])
def test_where_it_cannot_be_made_so_triton_makes_it(
    why: str, launched: tuple[Launched, list[Any]], driver: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver([4, *SIZES[1:]] if "sizes" in why else SIZES, result=201 if "refuses" in why else 0)
    once, calls = launched
    how = "run"
    if "profiler" in why:
        monkeypatch.setattr(launch_module, "_hooks", lambda: True)
        how = "public"
    once.again([16, 32])
    assert calls == [(how, (16, -7, 2**40, 0.5, True, 32, 64))]


def test_an_unknown_release_of_triton_launches_by_itself(
    launched: tuple[Launched, list[Any]], driver: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = driver()
    monkeypatch.setattr(launch_module, "_LAUNCHER_IS_KNOWN", False)
    once, calls = launched
    once.again([16, 32])
    assert fake.launches == []
    assert [how for how, _ in calls] == ["public"]


@triton.jit
def of_every_type(x_ptr, out_ptr, i8, i16, i32, i64, u64, scale, one, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    total = i8 + i16 + i32 + i64 + u64.to(tl.int64) + one
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets) * scale + total)


def test_the_layout_is_that_of_the_installed_triton(driver: Callable[..., Driver]) -> None:
    signature = {"x_ptr": "*fp32", "out_ptr": "*fp32", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64"}
    signature |= {"u64": "u64", "scale": "fp32", "one": "constexpr", "BLOCK": "constexpr"}
    source = triton.compiler.ASTSource(of_every_type, signature, constexprs={"one": 1, "BLOCK": 64})
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 2, "launch_pdl": True})
    widths = {"u8": 1, "b8": 1, "u16": 2, "b16": 2, "u32": 4, "b32": 4, "f32": 4, "u64": 8, "b64": 8}
    header = built.asm["ptx"].split(".entry")[1].split(")")[0]
    sizes = [widths[line.split(".param .")[1].split()[0]] for line in header.splitlines() if ".param" in line]
    assert sizes == [8, 8, 1, 2, 4, 8, 8, 4, 8, 8]
    fake = driver(sizes)
    kernel = SimpleNamespace(function=0x1234, metadata=built.metadata, src=built.src, asm=built.asm)
    again = direct_launch(kernel, (3, 1, 1), (None, None, -1, -2, -3, -4, 2**63, 0.25, 1, 64))
    assert again is not None
    assert again([16, 32], 0)
    assert fake.launches[0].block == (64, 1, 1)
    assert fake.launches[0].attributes == [(6, 1)]


# On a GPU: the functions themselves.

FUNCTIONS = [name for name in specs() if not name.endswith(("allocate", "torch_reference"))]


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What came of every direct launch."""
    known_calls.forget_known_calls()
    seen: list[bool] = []
    plain = DirectLaunch.__call__

    def noted(self: DirectLaunch, pointers: list[int], stream: int) -> bool:
        seen.append(plain(self, pointers, stream))
        return seen[-1]

    monkeypatch.setattr(DirectLaunch, "__call__", noted)
    return seen


@pytest.mark.gpu
@pytest.mark.parametrize("function", FUNCTIONS)
def test_known_calls_are_launched_directly_and_are_right(function: str, results: list[bool]) -> None:
    if not launch_module._LAUNCHER_IS_KNOWN or torch.version.hip is not None:
        pytest.skip("this Triton launches by itself")
    entry = spec(function)
    for seed in (1, 2, 3):
        assert run_against_reference(Call.valid(entry, seed=seed)) <= entry.tolerance
    assert results
    assert all(results)


@pytest.mark.gpu
@pytest.mark.parametrize("function", FUNCTIONS)
def test_in_a_fresh_thread_and_on_another_stream(function: str, results: list[bool]) -> None:
    entry = spec(function)
    run_against_reference(Call.valid(entry, seed=1))
    errors: list[float] = []

    def work() -> None:
        stream = torch.cuda.Stream(topology.HOME)
        with torch.cuda.stream(stream):
            errors.extend(run_against_reference(Call.valid(entry, seed=seed)) for seed in (2, 3))
            stream.synchronize()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(errors) == 2
    assert max(errors) <= entry.tolerance
