"""One way to solve each exercise of the kv-canary plan."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from kernels.guards import tensors_of

names: dict[str, str] = {
    "lut_tensor": "full_to_swa_index_mapping",
    "out_write_offsets": "write_plan_out.write_offsets",
    "out_write_seed_slot_indices": "write_plan_out.write_seed_slot_indices",
    "out_verify_num_valid": "verify_plan_out.verify_num_valid",
    "out_verify_enable": "verify_plan_out.enable",
    "out_verify_prev_slot_indices": "verify_plan_out.verify_prev_slot_indices",
}


def to_mend(arguments: dict[str, Any]) -> list[str]:
    """Arguments with a tensor that is not where most tensors of the call are."""
    devices = {name: tensor.device for name, tensor in tensors_of(arguments).items()}
    home = Counter(devices.values()).most_common(1)[0][0]
    return sorted({name.partition(".")[0] for name, device in devices.items() if device != home})


predictions: dict[str, str] = {
    "A": "kv-canary: prefix_lens must have dtype torch.int64, got torch.int32",
    "B": "kv-canary: req_pool_indices must be on out_verify_offsets_scratch's device cuda:1, got cuda:0",
    "C": "kv-canary: launch_canary_plan_kernels requires full_to_swa_index_mapping when swa_window_size > 0",
    "D": "",
    "E": "kv-canary: launch_plan_entries_kernel requires req_to_verify_expected_tokens_valid_lens",
}


def batch_tensors(requests: list[tuple[int, int, int]], table: torch.Tensor) -> list[torch.Tensor]:
    """req_pool_indices, prefix_lens and extend_seq_lens of a batch, for this req_to_token."""
    columns = [[request[i] for request in requests] for i in range(3)]
    return [torch.tensor(column, dtype=torch.int64, device=table.device) for column in columns]
