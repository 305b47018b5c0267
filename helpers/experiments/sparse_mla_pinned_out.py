"""The prefill without its guard, with out in pinned host memory: accepted, right, and slow."""

from __future__ import annotations

from functools import partial

import torch
import triton.testing

from helpers import topology
from helpers.calls import same_bits
from helpers.experiments._prefill import prefill_unguarded, valid_call

TOKENS = 1024  # an out of 64 MiB

if topology.exists(topology.HOME):
    call = valid_call()
    for name in ("q", "indices", "topk_length", "max_logits", "lse"):
        shape = call[name].shape
        call[name] = call[name].narrow(0, 0, 1).expand(TOKENS, *shape[1:]).contiguous()
    near = torch.empty(TOKENS, *call["out"].shape[1:], dtype=torch.bfloat16, device=topology.HOME)
    pinned = torch.empty_like(near, device=topology.CPU).pin_memory()

    fast = triton.testing.do_bench(partial(prefill_unguarded, call.args | {"out": near}), return_mode="median")
    slow = triton.testing.do_bench(partial(prefill_unguarded, call.args | {"out": pinned}), return_mode="median")
    right = "right" if same_bits(near, pinned) else "wrong"
    told = (
        f"an out in pinned memory was accepted and the result is {right}, but {TOKENS} tokens took {slow:.2f} ms "
        f"instead of {fast:.2f}: {slow / fast:.0f} times as long, because all of out leaves over PCIe"
    )
else:
    missing = "there is no GPU here, so no memory can be pinned for one and there is nothing to measure"
