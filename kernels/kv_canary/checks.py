"""What the canary plan and the token scatter refuse, in order.

Messages name some tensors as the serving engine does inside (``lut_tensor``, ``out_write_offsets``); ``ALIASES`` says
which argument the caller passed under each. ``out_verify_offsets_scratch`` is a buffer between the engine's two
launches. One launch needs none, but its place lives on in the message about devices: it would be where
``verify_plan_out.verify_slot_indices`` is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import torch

from kernels.guards import (
    ArgumentError,
    DeviceError,
    DtypeError,
    DtypeTypeError,
    Guard,
    LayoutError,
    RankError,
    ShapeError,
    same_device,
)

if TYPE_CHECKING:
    from kernels.kv_canary.plans import VerifyPlan, WritePlan

PLAN = "launch_canary_plan_kernels"
REFERENCE = "launch_canary_plan_kernels_torch_reference"
SCATTER = "launch_scatter_req_token_ids_kernel"
MAX_REQS = 4096
MAX_SCATTER_OFFSETS = 512

ALIASES = {
    "lut_tensor": "full_to_swa_index_mapping",
    "out_verify_offsets_scratch": "verify_plan_out.verify_slot_indices",
    "out_write_offsets": "write_plan_out.write_offsets",
    "out_write_seed_slot_indices": "write_plan_out.write_seed_slot_indices",
    "out_verify_num_valid": "verify_plan_out.verify_num_valid",
    "out_verify_enable": "verify_plan_out.enable",
    "out_write_num_valid_reqs": "write_plan_out.write_num_valid_reqs",
    "out_verify_slot_indices": "verify_plan_out.verify_slot_indices",
    "out_verify_expected_tokens": "verify_plan_out.verify_expected_tokens",
    "out_verify_expected_positions": "verify_plan_out.verify_expected_positions",
    "out_verify_prev_slot_indices": "verify_plan_out.verify_prev_slot_indices",
}

VERIFY_CAPACITY = Guard(
    "kv_canary.verify_plan.capacity",
    ArgumentError,
    "kv-canary: VerifyPlan verify_capacity must be positive, got {got}",
    "allocate room for the longest batch: verify_capacity=max_reqs * max_seq_len",
)
WRITE_CAPACITY = Guard(
    "kv_canary.write_plan.capacity",
    ArgumentError,
    "kv-canary: WritePlan write_req_capacity must be positive, got {got}",
    "allocate room for the largest batch: write_req_capacity=max_running_requests",
)

BATCH = Guard(
    "kv_canary.plan.batch",
    ShapeError,
    f"kv-canary: {PLAN} supports at most bs={MAX_REQS} reqs per launch, got bs={{got}}. "
    "Bump _PLAN_BS_BLOCK_SIZE if real workloads need this.",
    "split the batch into calls of at most {expected} requests, each with plans of its own",
)
WINDOW_MAPPING = Guard(
    "kv_canary.plan.window_mapping",
    ArgumentError,
    f"kv-canary: {PLAN} requires full_to_swa_index_mapping when swa_window_size > 0",
    "pass the mapping of the sliding-window pool, or swa_window_size=0 for a pool with all positions",
)
CAPACITY = Guard(
    "kv_canary.plan.capacity",
    ArgumentError,
    f"kv-canary: {PLAN} verify_capacity={{got}} does not match "
    "verify_plan_out.verify_slot_indices.shape[0]={expected}",
    "verify_capacity = verify_plan_out.verify_slot_indices.shape[0]",
)
CONTIGUOUS = Guard(
    "kv_canary.plan.contiguous",
    LayoutError,
    "kv-canary: {name} must be contiguous",
    "{remedy}",
)
DTYPE = Guard(
    "kv_canary.plan.dtype",
    DtypeError,
    "kv-canary: {name} must have dtype {expected}, got {got}",
    "{remedy}",
)
OFFSETS_LEN = Guard(
    "kv_canary.plan.offsets_len",
    ShapeError,
    "kv-canary: write_offsets_len must be positive, got {got}",
    "write_plan_out = WritePlan.allocate(write_req_capacity=bs, device=...)",
)
TABLE_STRIDE = Guard(
    "kv_canary.plan.table_stride",
    LayoutError,
    "kv-canary: req_to_token_stride0 must be positive, got {got}",
    "req_to_token = req_to_token.clone(memory_format=torch.contiguous_format)",
)
MAPPING_LEN = Guard(
    "kv_canary.plan.mapping_len",
    ShapeError,
    "kv-canary: lut_len must be positive when has_swa_lut is True",
    "pass the mapping with an entry for every slot of the full pool, or None",
)
RANK = Guard(
    "kv_canary.plan.rank",
    RankError,
    "kv-canary: {name} must be {expected}-D, got shape {got}",
    "{remedy}",
)
LENGTH = Guard(
    "kv_canary.plan.length",
    ShapeError,
    "kv-canary: {name} length must be {expected}, got {got}",
    "{remedy}",
)
WRITE_OFFSETS = Guard(
    "kv_canary.plan.write_offsets",
    ShapeError,
    "kv-canary: write_offsets_len must equal write_req_capacity + 1, got {got} and {capacity}",
    "write_plan_out = WritePlan.allocate(write_req_capacity=..., device=...)",
)
WRITE_ROOM = Guard(
    "kv_canary.plan.write_room",
    ShapeError,
    "kv-canary: bs={got} exceeds write_req_capacity={expected}",
    "write_plan_out = WritePlan.allocate(write_req_capacity=max_running_requests, device=...)",
)
DEVICE = Guard(
    "kv_canary.plan.device",
    DeviceError,
    "kv-canary: {name} must be on out_verify_offsets_scratch's device {expected}, got {got}",
)
TOKEN_LENS = Guard(
    "kv_canary.plan.token_lens",
    ArgumentError,
    "kv-canary: launch_plan_entries_kernel requires req_to_verify_expected_tokens_valid_lens "
    "when req_to_verify_expected_tokens is set",
    "pass how many tokens of each request are known, or no tokens",
)

REFERENCE_CAPACITY = Guard(
    "kv_canary.reference.capacity",
    ArgumentError,
    f"kv-canary: {REFERENCE} verify_capacity={{got}} does not match "
    "verify_plan_out.verify_slot_indices.shape[0]={expected}",
    "verify_capacity = verify_plan_out.verify_slot_indices.shape[0]",
)
REFERENCE_TOKEN_LENS = Guard(
    "kv_canary.reference.token_lens",
    ArgumentError,
    f"kv-canary: {REFERENCE} requires req_to_verify_expected_tokens_valid_lens "
    "when req_to_verify_expected_tokens is set",
    "pass how many tokens of each request are known, or no tokens",
)
REFERENCE_SLOT = Guard(
    "kv_canary.reference.slot",
    ArgumentError,
    "kv-canary: SWA slot {got} is outside full_to_swa_index_mapping length {expected}",
    "pass the mapping of the pool that req_to_token points into",
)

SCATTER_RANK = Guard(
    "kv_canary.scatter.rank",
    RankError,
    "kv-canary: scatter_req_token_ids {argument} must be {expected}-D, got shape {got}",
    "{argument} must have {expected} dim(s)",
)
SCATTER_INT64 = Guard(
    "kv_canary.scatter.int64",
    DtypeTypeError,
    "kv-canary: scatter_req_token_ids {argument} must be int64, got {got}",
    "{argument} = {argument}.to(torch.int64)",
)
SCATTER_INT32 = Guard(
    "kv_canary.scatter.int32",
    DtypeTypeError,
    "kv-canary: scatter_req_token_ids pool_out must be int32, got {got}",
    "allocate the pool with dtype=torch.int32",
)
SCATTER_OFFSETS = Guard(
    "kv_canary.scatter.offsets",
    ShapeError,
    "kv-canary: scatter_req_token_ids offsets length {got} != bs+1 ({expected})",
    "offsets begins with 0 and ends with the number of all tokens",
)
SCATTER_BATCH = Guard(
    "kv_canary.scatter.batch",
    ShapeError,
    f"kv-canary: scatter_req_token_ids bs+1={{got}} exceeds BATCH_BLOCK={MAX_SCATTER_OFFSETS}; "
    "bump _SCATTER_BATCH_BLOCK if real workloads need this",
    "split the batch into calls of fewer than {expected} requests",
)
SCATTER_DEVICE = Guard(
    "kv_canary.scatter.device",
    DeviceError,
    "kv-canary: {argument} must be on flat_in's device {expected}, got {got}",
)


class _Wanted(NamedTuple):
    """A tensor under the name that messages give it, and what it has to be; ``length`` None means any."""

    name: str
    tensor: torch.Tensor
    dtype: torch.dtype
    ndim: int = 1
    length: int | None = None

    @property
    def argument(self) -> str:
        """The name under which the caller passed it."""
        return ALIASES.get(self.name, self.name)

    def remedy(self, how: str) -> str:
        """What to do about it: an input is converted, a plan is allocated anew."""
        owner, _, field = self.argument.partition(".")
        plan = "VerifyPlan" if owner == "verify_plan_out" else "WritePlan"
        return f"{owner} = {plan}.allocate(...)" if field else f"{owner} = {owner}{how}"


def check_verify_capacity(verify_capacity: int) -> None:
    """Refuse to allocate a verify plan that could hold nothing."""
    if verify_capacity <= 0:
        raise VERIFY_CAPACITY.refuse("verify_capacity", expected="a positive number", got=verify_capacity)


def check_write_capacity(write_req_capacity: int) -> None:
    """Refuse to allocate a write plan that could hold nothing."""
    if write_req_capacity <= 0:
        raise WRITE_CAPACITY.refuse("write_req_capacity", expected="a positive number", got=write_req_capacity)


def check_plan(
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
    """Refuse a plan that could not be right.

    Raises:
        GuardError: the first guard that the call violates.
    """
    verify, write, mapping = verify_plan_out, write_plan_out, full_to_swa_index_mapping
    # Without a dim there is no batch size; then the guard of the rank is the first to speak.
    bs = req_pool_indices.shape[0] if req_pool_indices.ndim else None
    if bs is not None and bs > MAX_REQS:
        raise BATCH.refuse("req_pool_indices", expected=MAX_REQS, got=bs)
    if swa_window_size > 0 and mapping is None:
        raise WINDOW_MAPPING.refuse("full_to_swa_index_mapping")
    if verify.verify_slot_indices.ndim and verify_capacity != verify.verify_slot_indices.shape[0]:
        raise CAPACITY.refuse("verify_capacity", expected=verify.verify_slot_indices.shape[0], got=verify_capacity)
    wanted = [
        _Wanted("req_pool_indices", req_pool_indices, torch.int64, length=bs),
        _Wanted("prefix_lens", prefix_lens, torch.int64, length=bs),
        _Wanted("extend_seq_lens", extend_seq_lens, torch.int64, length=bs),
        _Wanted("req_to_token", req_to_token, torch.int32, ndim=2),
        *([_Wanted("lut_tensor", mapping, torch.int64)] if mapping is not None else []),
        _Wanted("out_write_offsets", write.write_offsets, torch.int64),
        _Wanted("out_write_seed_slot_indices", write.write_seed_slot_indices, torch.int64),
        _Wanted("out_verify_num_valid", verify.verify_num_valid, torch.int32, length=1),
        _Wanted("out_verify_enable", verify.enable, torch.int32, length=1),
        _Wanted("out_write_num_valid_reqs", write.write_num_valid_reqs, torch.int32, length=1),
    ]
    _check_contiguous(wanted)
    _check_dtypes(wanted)
    _check_possible_sizes(write.write_offsets, req_to_token, mapping)
    _check_shapes(wanted)
    _check_write_room(write.write_offsets.shape[0], write.write_seed_slot_indices.shape[0], req_pool_indices.shape[0])
    _check_devices(wanted, verify.verify_slot_indices)
    tokens, token_lens = req_to_verify_expected_tokens, req_to_verify_expected_tokens_valid_lens
    if tokens is not None and token_lens is None:
        raise TOKEN_LENS.refuse("req_to_verify_expected_tokens_valid_lens")
    if tokens is not None and token_lens is not None:
        _check_tokens(tokens, token_lens, verify.verify_slot_indices, req_pool_indices.shape[0])
    _check_entries(verify, verify_capacity)


def _check_contiguous(wanted: Iterable[_Wanted]) -> None:
    for item in wanted:
        if not item.tensor.is_contiguous():
            got = tuple(item.tensor.stride())
            raise CONTIGUOUS.refuse(item.argument, got=got, name=item.name, remedy=item.remedy(".contiguous()"))


def _check_dtypes(wanted: Iterable[_Wanted]) -> None:
    for item in wanted:
        if item.tensor.dtype != item.dtype:
            want, got, remedy = item.dtype, item.tensor.dtype, item.remedy(f".to({item.dtype})")
            raise DTYPE.refuse(item.argument, expected=want, got=got, name=item.name, remedy=remedy)


def _check_possible_sizes(offsets: torch.Tensor, table: torch.Tensor, mapping: torch.Tensor | None) -> None:
    if offsets.ndim and offsets.shape[0] <= 0:
        raise OFFSETS_LEN.refuse(ALIASES["out_write_offsets"], got=offsets.shape[0])
    if table.ndim and table.stride(0) <= 0:
        raise TABLE_STRIDE.refuse("req_to_token", got=table.stride(0))
    if mapping is not None and mapping.ndim and mapping.shape[0] <= 0:
        raise MAPPING_LEN.refuse("full_to_swa_index_mapping", got=mapping.shape[0])


def _check_shapes(wanted: Iterable[_Wanted]) -> None:
    for item in wanted:
        shape = tuple(item.tensor.shape)
        if len(shape) != item.ndim:
            remedy = item.remedy(".flatten()" if item.ndim == 1 else ".view(max_reqs, -1)")
            raise RANK.refuse(item.argument, expected=item.ndim, got=shape, name=item.name, remedy=remedy)
        if item.length is not None and shape[0] != item.length:
            remedy = item.remedy(f"[:{item.length}]")
            raise LENGTH.refuse(item.argument, expected=item.length, got=shape[0], name=item.name, remedy=remedy)


def _check_write_room(offsets_len: int, capacity: int, bs: int) -> None:
    if offsets_len != capacity + 1:
        argument = ALIASES["out_write_offsets"]
        raise WRITE_OFFSETS.refuse(argument, expected=capacity + 1, got=offsets_len, capacity=capacity)
    if bs > capacity:
        raise WRITE_ROOM.refuse("req_pool_indices", expected=capacity, got=bs)


def _check_devices(wanted: Iterable[_Wanted], reference: torch.Tensor) -> None:
    for item in wanted:
        if not same_device(item.tensor, reference):
            raise DEVICE.refuse(item.argument, expected=reference.device, got=item.tensor.device, name=item.name)


def _check_tokens(tokens: torch.Tensor, lens: torch.Tensor, reference: torch.Tensor, bs: int) -> None:
    _check_whole(_Wanted("req_to_verify_expected_tokens", tokens, torch.int32, ndim=2), reference)
    _check_whole(_Wanted("req_to_verify_expected_tokens_valid_lens", lens, torch.int64, length=bs), reference)


def _check_entries(verify: VerifyPlan, capacity: int) -> None:
    for name, tensor in (
        ("out_verify_slot_indices", verify.verify_slot_indices),
        ("out_verify_expected_tokens", verify.verify_expected_tokens),
        ("out_verify_expected_positions", verify.verify_expected_positions),
        ("out_verify_prev_slot_indices", verify.verify_prev_slot_indices),
    ):
        _check_whole(_Wanted(name, tensor, torch.int64, length=capacity), verify.verify_slot_indices)


def _check_whole(item: _Wanted, reference: torch.Tensor) -> None:
    """Everything about one tensor, before the next one is looked at."""
    _check_contiguous([item])
    _check_dtypes([item])
    _check_shapes([item])
    _check_devices([item], reference)


def check_reference(
    verify_plan_out: VerifyPlan, verify_capacity: int, tokens: torch.Tensor | None, token_lens: torch.Tensor | None
) -> None:
    """Refuse what the PyTorch reference could not make sense of.

    Raises:
        GuardError: the first guard that the call violates.
    """
    room = verify_plan_out.verify_slot_indices.shape[0]
    if verify_capacity != room:
        raise REFERENCE_CAPACITY.refuse("verify_capacity", expected=room, got=verify_capacity)
    if tokens is not None and token_lens is None:
        raise REFERENCE_TOKEN_LENS.refuse("req_to_verify_expected_tokens_valid_lens")


def check_scatter(
    *, flat_in: torch.Tensor, offsets: torch.Tensor, req_pool_indices: torch.Tensor, pool_out: torch.Tensor
) -> None:
    """Refuse a token scatter that could not be right.

    Raises:
        GuardError: the first guard that the call violates.
    """
    lists = {"flat_in": flat_in, "offsets": offsets, "req_pool_indices": req_pool_indices}
    for name, tensor in {**lists, "pool_out": pool_out}.items():
        ndim = 2 if name == "pool_out" else 1
        if tensor.ndim != ndim:
            raise SCATTER_RANK.refuse(name, expected=ndim, got=tuple(tensor.shape))
    for name, tensor in lists.items():
        if tensor.dtype != torch.int64:
            raise SCATTER_INT64.refuse(name, expected=torch.int64, got=tensor.dtype)
    if pool_out.dtype != torch.int32:
        raise SCATTER_INT32.refuse("pool_out", expected=torch.int32, got=pool_out.dtype)
    bs = req_pool_indices.shape[0]
    if offsets.shape[0] != bs + 1:
        raise SCATTER_OFFSETS.refuse("offsets", expected=bs + 1, got=offsets.shape[0])
    if bs + 1 > MAX_SCATTER_OFFSETS:
        raise SCATTER_BATCH.refuse("req_pool_indices", expected=MAX_SCATTER_OFFSETS, got=bs + 1)
    for name, tensor in {**lists, "pool_out": pool_out}.items():
        if not same_device(tensor, flat_in):
            raise SCATTER_DEVICE.refuse(name, expected=flat_in.device, got=tensor.device)
