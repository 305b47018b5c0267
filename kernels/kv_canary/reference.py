"""The canary plan and the token scatter in plain PyTorch, for any device and for reading.

The plan is written with whole-tensor operations whose shapes do not depend on values, because it also is the path that
:func:`kernels.launch_canary_plan_kernels` takes for CPU tensors, where one operation per entry would be slow.
"""

from __future__ import annotations

import torch

from kernels.guards import GuardError, explain_refusal, is_fake, tensors_of
from kernels.kv_canary import checks
from kernels.kv_canary.checks import REFERENCE_SLOT
from kernels.kv_canary.plans import VerifyPlan, WritePlan


def launch_canary_plan_kernels_torch_reference(
    *,
    verify_plan_out: VerifyPlan,
    write_plan_out: WritePlan,
    req_pool_indices: torch.Tensor,
    prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    req_to_token: torch.Tensor,
    swa_window_size: int,
    full_to_swa_index_mapping: torch.Tensor | None,
    verify_capacity: int,
    req_to_verify_expected_tokens: torch.Tensor | None,
    req_to_verify_expected_tokens_valid_lens: torch.Tensor | None,
    kv_token_id_vs_position_offset: int,
) -> None:
    """The same plan as :func:`kernels.launch_canary_plan_kernels`, bit for bit, in plain PyTorch.

    One thing is stricter: a slot past the end of the mapping is refused here, where the kernel uses the last entry. For
    that the slots are read on the host, so with a mapping on a GPU this waits for the device.

    Args: as :func:`kernels.launch_canary_plan_kernels`.

    Raises:
        GuardError: (ValueError) when ``verify_capacity`` is not the plan's, when tokens come without their valid
            lengths, or when a slot is past the end of the mapping. Nothing has been written then.
    """
    arguments = dict(locals())
    try:
        checks.check_reference(
            verify_plan_out,
            verify_capacity,
            req_to_verify_expected_tokens,
            req_to_verify_expected_tokens_valid_lens,
        )
        if not any(is_fake(tensor) for tensor in tensors_of(arguments).values()):  # those have no memory to fill
            plan_in_torch(**arguments, slots_must_be_mapped=True)
    except GuardError as error:
        explain_refusal(error, checks.REFERENCE, arguments, runs_on_cpu=True)
        raise


def plan_in_torch(
    *,
    verify_plan_out: VerifyPlan,
    write_plan_out: WritePlan,
    req_pool_indices: torch.Tensor,
    prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    req_to_token: torch.Tensor,
    swa_window_size: int,
    full_to_swa_index_mapping: torch.Tensor | None,
    verify_capacity: int,
    req_to_verify_expected_tokens: torch.Tensor | None,
    req_to_verify_expected_tokens_valid_lens: torch.Tensor | None,
    kv_token_id_vs_position_offset: int,
    slots_must_be_mapped: bool = False,
) -> None:
    """Compute the whole plan of a checked call, then write it.

    With ``slots_must_be_mapped``, slots past the end of the mapping are refused instead of using its last entry. The
    other arguments are those of :func:`kernels.launch_canary_plan_kernels`.

    Raises:
        GuardError: (ValueError) for such a slot. Nothing has been written then.
    """
    if req_pool_indices.shape[0] == 0:
        return
    pool, start, count = _positions(req_pool_indices, prefix_lens, req_to_token, swa_window_size)
    owner, position, exists = _entries(start, count, verify_plan_out.verify_slot_indices)
    row = pool.take(owner)
    slot = _lookup(req_to_token, row, position, exists)
    prev = _lookup(req_to_token, row, position - 1, exists & (position > 0))
    token = torch.full_like(slot, -1)
    if req_to_verify_expected_tokens is not None and req_to_verify_expected_tokens_valid_lens is not None:
        rows, width = req_to_verify_expected_tokens.shape
        place = position + kv_token_id_vs_position_offset
        known_end = req_to_verify_expected_tokens_valid_lens.clamp(max=width).take(owner)
        known = exists & (row < rows) & (place >= 0) & (place < known_end)
        token = _lookup(req_to_verify_expected_tokens, row, place, known)
    extend = torch.where(pool > 0, extend_seq_lens.clamp(min=0), 0)
    seed = _lookup(req_to_token, pool, start + count - 1, (count > 0) & (extend > 0))
    if full_to_swa_index_mapping is not None:
        if slots_must_be_mapped:
            _refuse_unmapped(torch.cat([slot, prev, seed]), full_to_swa_index_mapping)
        slot, prev, seed = (_translate(slots, full_to_swa_index_mapping) for slots in (slot, prev, seed))
    _write_verify_plan(verify_plan_out, exists, count.sum(), slot, token, position, prev)
    _write_write_plan(write_plan_out, extend, seed)


def _positions(
    req_pool_indices: torch.Tensor, prefix_lens: torch.Tensor, req_to_token: torch.Tensor, window: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pool index (0 for padding), first position to verify and number of positions of each request."""
    max_reqs, max_len = req_to_token.shape
    live = (req_pool_indices > 0) & (req_pool_indices < max_reqs)
    length = torch.where(live, prefix_lens.clamp(0, max_len), 0)
    start = (length - window).clamp(min=0) if window > 0 else torch.zeros_like(length)
    return torch.where(live, req_pool_indices, 0), start, length - start


def _entries(
    start: torch.Tensor, count: torch.Tensor, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Request and position of each entry of a plan as long as ``like``, and whether that entry exists."""
    end = count.cumsum(0)
    entry = torch.arange(like.shape[0], device=like.device)
    owner = torch.searchsorted(end, entry, right=True).clamp(max=count.shape[0] - 1)
    position = start.take(owner) + entry - (end - count).take(owner)
    fits = count.sum() <= like.shape[0]
    return owner, position, fits & (entry < count.sum())


def _lookup(table: torch.Tensor, row: torch.Tensor, column: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """``table[row, column]`` as int64 where found, else -1. Nothing else of the table is read."""
    if table.numel() == 0:
        return torch.full_like(column, -1)
    place = torch.where(found, row * table.shape[1] + column, 0)
    return torch.where(found, table.take(place).to(torch.int64), -1)


def _translate(slot: torch.Tensor, mapping: torch.Tensor) -> torch.Tensor:
    """Slot of the sliding-window pool. Negative slots pass, those past the mapping's end use its last entry."""
    return torch.where(slot < 0, slot, mapping.take(slot.clamp(0, mapping.shape[0] - 1)))


def _refuse_unmapped(slots: torch.Tensor, mapping: torch.Tensor) -> None:
    outside = slots[slots >= mapping.shape[0]]
    if outside.numel() > 0:
        raise REFERENCE_SLOT.refuse("req_to_token", expected=mapping.shape[0], got=int(outside[0]))


def _write_verify_plan(
    plan: VerifyPlan,
    exists: torch.Tensor,
    total: torch.Tensor,
    slot: torch.Tensor,
    token: torch.Tensor,
    position: torch.Tensor,
    prev: torch.Tensor,
) -> None:
    capacity = plan.verify_slot_indices.shape[0]
    for out, values in (
        (plan.verify_slot_indices, slot),
        (plan.verify_expected_tokens, token),
        (plan.verify_expected_positions, position),
        (plan.verify_prev_slot_indices, prev),
    ):
        out.copy_(torch.where(exists, values, out))
    plan.verify_num_valid.copy_(total.clamp(max=capacity))
    plan.enable.copy_(total <= capacity)


def _write_write_plan(plan: WritePlan, extend: torch.Tensor, seed: torch.Tensor) -> None:
    bs = extend.shape[0]
    plan.write_offsets.zero_()
    plan.write_offsets.narrow(0, 1, bs).copy_(extend.cumsum(0))
    plan.write_seed_slot_indices.narrow(0, 0, bs).copy_(seed)
    plan.write_num_valid_reqs.fill_(bs)


def launch_scatter_req_token_ids_kernel_torch_reference(
    *, flat_in: torch.Tensor, offsets: torch.Tensor, req_pool_indices: torch.Tensor, pool_out: torch.Tensor
) -> None:
    """The same as :func:`kernels.launch_scatter_req_token_ids_kernel`, request by request.

    The offsets are read on the host, so on a GPU this waits for the device.

    Args: as :func:`kernels.launch_scatter_req_token_ids_kernel`.
    """
    rows, width = pool_out.shape
    bounds = offsets.tolist()
    for request, row in enumerate(req_pool_indices.tolist()):
        begin, end = bounds[request], min(bounds[request + 1], flat_in.shape[0])
        first, last = max(0, -begin), min(width, end - begin)
        if 0 <= row < rows and first < last:
            pool_out[row, first:last] = flat_in[begin + first : begin + last].to(torch.int32)
