"""Steps at serving size are valid, and their bytes are those that a step touches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import kernels
from helpers.calls import relative_error
from helpers.serving_kda_replayssm import plain_kernel, serving_step, step_bytes
from kernels.kda_replayssm import api
from kernels.kda_replayssm.reference import kda_replayssm_decode_reference

POOLS = ("initial_state", "d_cache", "k_cache", "g_cache")


@pytest.mark.parametrize("cursor", [0, 2, 3])
def test_a_step_is_valid_and_changes_what_its_cursor_says(device: torch.device, cursor: int) -> None:
    args = serving_step(2, cursor, device, heads=1, size=16, length=4)
    before = {name: args[name].clone() for name in POOLS}
    wanted = {name: args[name].double().clone() for name in (*POOLS, "out")}
    kda_replayssm_decode_reference(**{**args, **wanted})
    kernels.helion_fused_recurrent_kda_replayssm_decode(**args)
    for name, want in wanted.items():
        assert relative_error(args[name], want) < 3e-3, name
    flushed = cursor == 3
    assert torch.equal(args["initial_state"], before["initial_state"]) != flushed
    assert torch.equal(args["d_cache"], before["d_cache"]) == flushed


@pytest.mark.parametrize(("state", "state_bytes"), [(torch.float32, 1024), (torch.bfloat16, 512)])
def test_bytes_are_counted_once(state: torch.dtype, state_bytes: int) -> None:
    def counted(cursor: int) -> int:
        args = serving_step(3, cursor, torch.device("cpu"), heads=2, size=16, length=4, state=state)
        small = sum(args[name].nbytes for name in ("mixed_qkv", "a", "b", "A_log", "dt_bias", "out"))
        # Slots are int64, cursors int32.
        return step_bytes(args) - small - 3 * (8 + 4)

    # Two heads; of an entry 16 bf16 updates, 16 bf16 keys and 16 float32 decays each.
    entry = 2 * 16 * (2 + 2 + 4)
    assert counted(0) == 3 * (2 * state_bytes + entry)
    assert counted(2) == 3 * (2 * state_bytes + 3 * entry)
    assert counted(3) == 3 * (4 * state_bytes + 3 * entry)


def test_the_plain_kernel_can_be_asked_for(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[dict[str, Any]] = []
    fast = SimpleNamespace(tile_for=lambda *_: "a tile", launch_decode=lambda cut, **args: launched.append(args))
    monkeypatch.setattr(api, "tensor_core", fast)
    args = serving_step(1, 0, device, heads=1, size=16, length=4)
    with plain_kernel():
        kernels.helion_fused_recurrent_kda_replayssm_decode(**args)
    assert not launched
    assert not args["out"].isnan().any()
    kernels.helion_fused_recurrent_kda_replayssm_decode(**args)
    assert len(launched) == 1
