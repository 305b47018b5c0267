"""Sparse MLA calls with random values, and what they must give."""

from __future__ import annotations

from typing import Any

import torch

import kernels
from helpers.calls import relative_error
from kernels.sparse_mla.reference import sparse_mla_prefill_reference

FP8 = torch.float8_e4m3fn
# NaN in e4m3; Triton's interpreter takes it for 480, which is still far from any value that is drawn.
NAN_BYTE = 0x7F
INPUTS = ("q", "kv", "indices", "sm_scale", "q_scale", "kv_scale", "attn_sink", "topk_length")
OUTPUTS = ("out", "max_logits", "lse")

Arguments = dict[str, Any]


def quantised(shape: tuple[int, ...], scale: float, device: torch.device) -> torch.Tensor:
    return (torch.randn(shape, device=device) / scale).clamp(-448, 448).to(FP8)


def make_call(
    device: torch.device,
    *,
    s_q: int = 2,
    h_q: int = 64,
    d_qk: int = 576,
    topk: int = 128,
    s_kv: int = 150,
    lengths: bool = False,
    sink: bool = False,
    sm_scale: float = 192**-0.5,
    q_scale: float = 0.01,
    kv_scale: float = 0.012,
) -> Arguments:
    """A call with random indices: some repeat, some are -1, some lie past the end."""
    arguments: Arguments = {
        "q": quantised((s_q, h_q, d_qk), abs(q_scale), device),
        "kv": quantised((s_kv, 1, d_qk), abs(kv_scale), device),
        "indices": torch.randint(-8, s_kv + 8, (s_q, 1, topk), dtype=torch.int32, device=device),
        "sm_scale": sm_scale,
        "q_scale": torch.tensor(q_scale, device=device),
        "kv_scale": torch.tensor(kv_scale, device=device),
        "attn_sink": torch.randn(h_q, device=device) if sink else None,
        "topk_length": None,
    }
    if lengths or sink:
        arguments["topk_length"] = torch.randint(1, topk + 1, (s_q,), dtype=torch.int32, device=device)
    return arguments


def poison(arguments: Arguments) -> None:
    """Fresh outputs full of NaN, and NaN in every row of the cache that no valid index names."""
    q, kv, indices, lengths = (arguments[name] for name in ("q", "kv", "indices", "topk_length"))
    valid = (indices >= 0) & (indices < kv.shape[0])
    if lengths is not None:
        valid &= torch.arange(indices.shape[2], device=q.device) < lengths[:, None, None]
    unused = torch.ones(kv.shape[0], dtype=torch.bool, device=q.device)
    unused[indices[valid].long()] = False
    kv.view(torch.uint8)[unused] = NAN_BYTE
    shapes = {"out": (*q.shape[:2], 512), "max_logits": q.shape[:2], "lse": q.shape[:2]}
    for name, shape in shapes.items():
        dtype = torch.bfloat16 if name == "out" else torch.float32
        arguments[name] = torch.full(shape, float("nan"), dtype=dtype, device=q.device)


def reference(arguments: Arguments, tokens: slice | torch.Tensor = slice(None)) -> dict[str, torch.Tensor]:
    """What the call must give for some of its tokens."""
    inputs = {name: arguments[name] for name in INPUTS}
    for name in ("q", "indices", "topk_length"):
        if inputs[name] is not None:
            # FP8 as bytes: not every PyTorch indexes it on every device.
            picked = inputs[name].view(torch.uint8)[tokens] if name == "q" else inputs[name][tokens]
            inputs[name] = picked.view(FP8) if name == "q" else picked
    return dict(zip(OUTPUTS, sparse_mla_prefill_reference(**inputs), strict=True))


def assert_right(arguments: Arguments, tokens: slice | torch.Tensor = slice(None)) -> None:
    """The outputs agree with the reference; where that is infinite, exactly."""
    expected = reference(arguments, tokens)
    got = {name: arguments[name][tokens] for name in OUTPUTS}
    assert relative_error(got["out"], expected["out"]) < 2e-2
    assert relative_error(got["max_logits"], expected["max_logits"]) < 1e-3
    assert relative_error(got["lse"], expected["lse"]) < 1e-3
    assert not bool(arguments["out"].isnan().any())


def run(arguments: Arguments) -> Arguments:
    """Make the call over poisoned memory."""
    poison(arguments)
    returned = kernels.sparse_mla_q8kv8_prefill_fwd(**arguments)
    for name, tensor in zip(OUTPUTS, returned, strict=True):
        assert tensor is arguments[name]
    return arguments
