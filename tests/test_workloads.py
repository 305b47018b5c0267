"""The workloads call the kernels rightly; their plain versions compute the same."""

from __future__ import annotations

import pytest
import torch

from helpers import topology, workloads
from helpers.workloads import Workload

SMALL = {
    "scatter": lambda device: workloads.scatter(5, device, layers=2, slots=6, steps=2, state=(3, 4)),
    "plan": lambda device: workloads.plan(3, device, longest=17),
    "append": lambda device: workloads.replay(2, device, heads=2, width=16, ring=4),
    "flush": lambda device: workloads.replay(2, device, heads=2, width=16, ring=4, flush=True),
    "prefill": lambda device: workloads.prefill(1, device, topk=128, rows=256),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_small_workload_is_right(name: str, device: torch.device) -> None:
    workload = SMALL[name](device)
    # Under the interpreter a store to bf16 truncates.
    assert workload.error() < 1e-2
    workload.call()
    workload.plain()
    assert workload.bytes > 0
    assert workload.intensity == workload.operations / workload.bytes


def test_the_plain_scatter_is_the_same(device: torch.device) -> None:
    workload = workloads.scatter(4, device, layers=1, slots=5, steps=2, state=(3,))
    workload.plain()
    assert workload.error() == 0.0


SERVING = {
    "scatter": lambda: workloads.scatter(8, topology.HOME),
    "plan": lambda: workloads.plan(512, topology.HOME),
    "append": lambda: workloads.replay(16, topology.HOME),
    "append, bf16 state": lambda: workloads.replay(16, topology.HOME, state_dtype=torch.bfloat16),
    "flush": lambda: workloads.replay(16, topology.HOME, flush=True),
    "prefill": lambda: workloads.prefill(128, topology.HOME),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", SERVING)
def test_at_serving_size(name: str) -> None:
    workload: Workload = SERVING[name]()
    assert workload.error() < (2e-2 if name == "prefill" else 3e-3)
