"""Expert parallelism: every rank admits requests and sends each to the rank that holds its KV cache.

How many requests go where has to be known to the host, so the lists travel through CPU memory. The rank that receives
a request plans the verification of its cache (the kv-canary plan).
"""

from __future__ import annotations

import torch

from helpers.calls import same_bits
from helpers.rank_programs.rank import Rank
from kernels import VerifyPlan, WritePlan, launch_canary_plan_kernels

CAPACITY, MAX_REQUESTS, ROWS, LONGEST = 16, 4, 8, 8
# What each rank admits in each step: owner, row of the request pool, positions in the cache, new positions.
ADMITTED = {
    0: [[(0, 1, 3, 1), (0, 2, 2, 4), (1, 3, 5, 1), (1, 4, 1, 2)], []],
    1: [[(0, 5, 4, 1)], []],
}


def table() -> torch.Tensor:
    """Slot of every position of every request, [rows, positions] int32. Row 0 is for padding."""
    return torch.arange(ROWS * LONGEST, dtype=torch.int32).reshape(ROWS, LONGEST)


def admitted(step: int, rank: int) -> torch.Tensor:
    """Requests of one rank, [n, 4] int64 also where n is 0, in the order of their owners."""
    return torch.tensor(ADMITTED[step][rank], dtype=torch.int64).reshape(-1, 4)


def exchange(rank: Rank, requests: torch.Tensor) -> torch.Tensor:
    """Send every request to its owner. A rank without any takes part like the others."""
    leaving = requests.narrow(1, 0, 1).flatten().bincount(minlength=rank.size)
    arriving = rank.all_to_all(leaving)
    return rank.all_to_all(requests, leaving.tolist(), arriving.tolist())


def lists_as_received(requests: torch.Tensor) -> dict[str, torch.Tensor]:
    """The three lists of the plan, as they came: on the CPU."""
    # A column of a table is not contiguous; the rows of the turned table are.
    _, rows, prefixes, new = requests.t().clone(memory_format=torch.contiguous_format).unbind()
    return {"req_pool_indices": rows, "prefix_lens": prefixes, "extend_seq_lens": new}


def lists_beside(requests: torch.Tensor, req_to_token: torch.Tensor) -> dict[str, torch.Tensor]:
    """The three lists of the plan, beside the pool that they index: one copy for all of them."""
    return lists_as_received(requests.to(req_to_token.device))


def plan(lists: dict[str, torch.Tensor], req_to_token: torch.Tensor) -> tuple[VerifyPlan, WritePlan]:
    """Which slots to verify, and where new links start. The plans lie where the pool does."""
    device = req_to_token.device
    plans = (
        VerifyPlan.allocate(verify_capacity=CAPACITY, device=device),
        WritePlan.allocate(write_req_capacity=MAX_REQUESTS, device=device),
    )
    launch_canary_plan_kernels(
        verify_plan_out=plans[0],
        write_plan_out=plans[1],
        **lists,
        req_to_token=req_to_token,
        swa_window_size=0,
        full_to_swa_index_mapping=None,
        verify_capacity=CAPACITY,
        req_to_verify_expected_tokens=None,
        req_to_verify_expected_tokens_valid_lens=None,
        kv_token_id_vs_position_offset=0,
    )
    return plans


def main(rank: Rank, way: str) -> None:
    """Two steps, with the lists "as_received" or "beside" the pool. Rank 1 admits nothing in either."""
    for step in ADMITTED:
        requests = exchange(rank, admitted(step, rank.index))
        with rank.gpus():
            pool = rank.place(table())
            lists = lists_beside(requests, pool) if way == "beside" else lists_as_received(requests)
        rank.show(**lists, req_to_token=pool)
        with rank.gpus():
            plan(lists, pool)
        print(f"step {step}: sent {len(ADMITTED[step][rank.index])} requests, planned {len(requests)}")
        compare(rank, step, requests)


def compare(rank: Rank, step: int, requests: torch.Tensor) -> None:
    """Put the entries of all ranks together; rank 0 compares them with those of one process that plans all requests."""
    parts = rank.gather(entries_here(rank, requests))
    if rank.index == 0:
        everything = torch.cat([admitted(step, other) for other in range(rank.size)])
        alone = valid(entries_here(rank, everything[everything.narrow(1, 0, 1).flatten().argsort(stable=True)]))
        together = torch.cat([valid(part) for part in parts], 1)
        print(f"step {step}: {alone.shape[1]} entries equal one process's, bit for bit:", same_bits(together, alone))


def entries_here(rank: Rank, requests: torch.Tensor) -> torch.Tensor:
    """Slots, positions and previous slots to verify, and how many count, [4, capacity] int64."""
    pool = table().to(rank.numbers)
    verify, _ = plan(lists_beside(requests, pool), pool)
    count = verify.verify_num_valid.to(torch.int64).expand(CAPACITY)
    return torch.stack(
        (verify.verify_slot_indices, verify.verify_expected_positions, verify.verify_prev_slot_indices, count)
    )


def valid(entries: torch.Tensor) -> torch.Tensor:
    """The entries that count, [3, n], on the CPU."""
    slots, count = entries.cpu().split((3, 1))
    return slots.narrow(1, 0, int(count.flatten()[0]))
