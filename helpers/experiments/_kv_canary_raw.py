"""The canary plan with its checks taken out, and a step large enough to be measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from kernels import VerifyPlan, WritePlan, interpreter
from kernels.kv_canary import api
from kernels.launch import launch


@contextmanager
def guards_off(on: torch.device) -> Iterator[Callable[..., object]]:
    """Within this context, the plan's launch as a function of the call's arguments, without a check.

    It runs on a device that is named, since no tensor of the call is trusted to know it; on the CPU it is interpreted.
    """

    def launch_there(*args: Any, device: torch.device, **options: Any) -> None:
        launch(*args, device=on, **options)

    with mock.patch.object(api, "launch", launch_there), interpreter():
        yield api._launch_plan


def large_step(requests: int, length: int, device: torch.device) -> dict[str, Any]:
    """Arguments of a decode step in which every request has a full row of positions.

    Args:
        requests: in the batch.
        length: positions of each.
        device: of every tensor.
    """
    rows = requests + 1
    return {
        "verify_plan_out": VerifyPlan.allocate(verify_capacity=requests * length, device=device),
        "write_plan_out": WritePlan.allocate(write_req_capacity=requests, device=device),
        "req_pool_indices": torch.arange(1, rows, device=device),
        "prefix_lens": torch.full((requests,), length, dtype=torch.int64, device=device),
        "extend_seq_lens": torch.ones(requests, dtype=torch.int64, device=device),
        "req_to_token": torch.arange(rows * length, dtype=torch.int32, device=device).view(rows, length),
        "swa_window_size": 0,
        "full_to_swa_index_mapping": None,
        "verify_capacity": requests * length,
        "req_to_verify_expected_tokens": None,
        "req_to_verify_expected_tokens_valid_lens": None,
        "kv_token_id_vs_position_offset": 0,
    }
