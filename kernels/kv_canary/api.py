"""The public functions of the canary plan: check, then launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl

from kernels.guards import GuardError, explain_refusal, on_gpu
from kernels.known_calls import KnownCalls
from kernels.kv_canary import checks
from kernels.kv_canary.kernel import plan_kernel, scatter_tokens_kernel
from kernels.kv_canary.plans import VerifyPlan, WritePlan
from kernels.kv_canary.reference import launch_scatter_req_token_ids_kernel_torch_reference, plan_in_torch
from kernels.launch import Launched, early_start, launch, needs_dispatch


@dataclass(frozen=True)
class Tiling:
    """How a batch is spread over programs.

    Attributes:
        block: requests that are scanned at once.
        chunks: blocks in the largest batch.
        tile: entries that are written at once.
        num_warps: of every program.
        max_log2_workers: base-2 logarithm of the most programs that write entries.
        vector: whether entries are stored 16 bytes at a time.
    """

    block: int
    chunks: int
    tile: int
    num_warps: int
    max_log2_workers: int
    vector: bool = False


# From the smallest batches to the largest, as measured on an H200 (docs/performance.md). Small ones are a chain of
# dependent loads, so their entries are spread thinly over many programs. In large ones every worker reads the whole
# batch before it writes, so it gets more to do; and only the largest are so bound by the stores that wide ones pay.
TILINGS = (
    Tiling(block=16, chunks=1, tile=128, num_warps=4, max_log2_workers=9),
    Tiling(block=64, chunks=1, tile=128, num_warps=2, max_log2_workers=9),
    Tiling(block=512, chunks=1, tile=512, num_warps=4, max_log2_workers=9),
    Tiling(block=256, chunks=4, tile=512, num_warps=4, max_log2_workers=9),
    Tiling(block=256, chunks=16, tile=512, num_warps=4, max_log2_workers=10, vector=True),
)

SCATTER_BLOCK = 1024
MAX_SCATTER_PROGRAMS = 16

# By the shape of req_pool_indices, and so by the batch.
_known_plans = KnownCalls(by=9)
_known_scatters = KnownCalls(by=2)


def launch_canary_plan_kernels(
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
    """Plan one step of the KV-cache canary: which slots to verify, and where each request's new links start.

    For every request r and every position p from ``start`` up to ``prefix_lens[r]``, request by request, one entry:

        start          = max(0, prefix_lens[r] - swa_window_size) with a window, else 0
        slot           = req_to_token[req_pool_indices[r], p]
        previous slot  = req_to_token[req_pool_indices[r], p - 1], -1 at p = 0
        position       = p
        expected token = req_to_verify_expected_tokens[req_pool_indices[r], p + kv_token_id_vs_position_offset]
                         if that place is in [0, valid_lens[r]), else -1

    If there are more entries than ``verify_capacity``, none is written, ``enable`` is 0 and ``verify_num_valid`` is the
    capacity. What lies past the entries is left as it was. ``write_offsets`` are the exclusive sums of the positive
    ``extend_seq_lens``, followed by their total and zeros; ``write_seed_slot_indices[r]`` is the slot of the last
    position of the prefix, -1 if there is no prefix or nothing to write. With a mapping, every slot but a negative one
    is replaced by its sliding-window slot, a slot past the mapping's end by the mapping's last entry.

    Values that cannot be followed are never followed. A request whose pool index is 0 is padding, and so is one whose
    pool index is negative or no row of ``req_to_token``: it adds no entry, writes nothing and has seed -1. A prefix
    length is cut to [0, max_seq_len]. A token place outside ``req_to_verify_expected_tokens`` is not known. An empty
    batch writes nothing at all, so the plans still hold the step before.

    One launch does everything: each program adds up the lengths before its own part again instead of waiting for
    another launch to do so. The call does not wait for the device, so it can be captured in a CUDA graph (run it once
    before with the same sizes, so that the kernel is compiled) and traced by torch.compile. With all tensors on the
    CPU, the plan is made in plain PyTorch, or in Triton's interpreter where that is opted in.

    Args:
        verify_plan_out: written; see :class:`kernels.VerifyPlan`.
        write_plan_out: written; see :class:`kernels.WritePlan`. Room for at least bs requests.
        req_pool_indices: [bs] int64, row of each request in the request pool. At most 4096 requests.
        prefix_lens: [bs] int64, positions that are in the cache already.
        extend_seq_lens: [bs] int64, positions that the step will write.
        req_to_token: [max_reqs, max_seq_len] int32, slot of every position.
        swa_window_size: positions that a sliding-window pool keeps; 0 or less for all.
        full_to_swa_index_mapping: [n] int64, sliding-window slot of every slot, or None.
        verify_capacity: length of the verify plan.
        req_to_verify_expected_tokens: [max_reqs, max_context_len] int32, token ids, or None.
        req_to_verify_expected_tokens_valid_lens: [bs] int64, how many tokens of each request are known; or None.
        kv_token_id_vs_position_offset: place of a token among the expected ones, minus its position.

    Raises:
        GuardError: a subclass of ValueError. Nothing has been written then.
    """
    verify, write = verify_plan_out, write_plan_out
    mapping, tokens = full_to_swa_index_mapping, req_to_verify_expected_tokens
    # Without tokens their number means nothing, and nobody looks at it.
    token_lens = req_to_verify_expected_tokens_valid_lens if tokens is not None else None
    compiling = torch.compiler.is_compiling()
    given: tuple[torch.Tensor, ...] = (
        *(verify.verify_slot_indices, verify.verify_expected_tokens),
        *(verify.verify_expected_positions, verify.verify_prev_slot_indices, verify.verify_num_valid, verify.enable),
        *(write.write_offsets, write.write_seed_slot_indices, write.write_num_valid_reqs),
        *(req_pool_indices, prefix_lens, extend_seq_lens, req_to_token),
        *(tensor for tensor in (mapping, tokens, token_lens) if tensor is not None),
    )
    known: tuple[Any, ...] = (swa_window_size, verify_capacity, kv_token_id_vs_position_offset)
    known = (*known, mapping is None, tokens is None, token_lens is None)
    if not compiling and _known_plans.launch(given, known):
        return
    arguments: dict[str, Any] = {
        "verify_plan_out": verify_plan_out,
        "write_plan_out": write_plan_out,
        "req_pool_indices": req_pool_indices,
        "prefix_lens": prefix_lens,
        "extend_seq_lens": extend_seq_lens,
        "req_to_token": req_to_token,
        "swa_window_size": swa_window_size,
        "full_to_swa_index_mapping": full_to_swa_index_mapping,
        "verify_capacity": verify_capacity,
        "req_to_verify_expected_tokens": req_to_verify_expected_tokens,
        "req_to_verify_expected_tokens_valid_lens": req_to_verify_expected_tokens_valid_lens,
        "kv_token_id_vs_position_offset": kv_token_id_vs_position_offset,
    }
    if not compiling:
        _check_plan(arguments)
        if not needs_dispatch(*given):
            _known_plans.remember(_make_plan(arguments), given, known)
            return
    _plan_op(**_flat(arguments), **{name: arguments[name] for name in _NUMBERS})


def launch_scatter_req_token_ids_kernel(
    *, flat_in: torch.Tensor, offsets: torch.Tensor, req_pool_indices: torch.Tensor, pool_out: torch.Tensor
) -> None:
    """Copy each request's tokens from a flat list into its row of the pool of expected tokens.

    ``pool_out[req_pool_indices[r], j] = int32(flat_in[offsets[r] + j])`` for every request r and every j below
    ``offsets[r + 1] - offsets[r]`` and the pool's width. A row that the pool does not have, and a place that
    ``flat_in`` does not have, are skipped. Requests are meant to have distinct rows; otherwise any may win.

    The call does not wait for the device; see :func:`launch_canary_plan_kernels` for graphs and for CPU tensors.

    Args:
        flat_in: [n] int64, the tokens of all requests.
        offsets: [bs + 1] int64, where each request's tokens begin, and where the last one's end. At most 512.
        req_pool_indices: [bs] int64.
        pool_out: [max_reqs, max_context_len] int32, any strides, written in place.

    Raises:
        GuardError: a subclass of ValueError, or of TypeError for a dtype. Nothing has been written then.
    """
    arguments = {"flat_in": flat_in, "offsets": offsets, "req_pool_indices": req_pool_indices, "pool_out": pool_out}
    if not torch.compiler.is_compiling():
        given = (flat_in, offsets, req_pool_indices, pool_out)
        if _known_scatters.launch(given):
            return
        _check_scatter(arguments)
        if not needs_dispatch(*given):
            _known_scatters.remember(_scatter_tokens(**arguments), given)
            return
    _scatter_op(**arguments)


def _check_plan(arguments: dict[str, Any]) -> None:
    try:
        checks.check_plan(**arguments)
    except GuardError as error:
        explain_refusal(error, checks.PLAN, arguments, aliases=checks.ALIASES, runs_on_cpu=True)
        raise


def _check_scatter(arguments: dict[str, torch.Tensor]) -> None:
    try:
        checks.check_scatter(**arguments)
    except GuardError as error:
        explain_refusal(error, checks.SCATTER, arguments, runs_on_cpu=True, written=("pool_out",))
        raise


def _make_plan(arguments: dict[str, Any]) -> Launched | None:
    """A checked call: the kernel where there is one, else plain PyTorch."""
    if arguments["req_pool_indices"].shape[0] == 0:
        return None
    if on_gpu(arguments["req_pool_indices"]):
        return _launch_plan(**arguments)
    plan_in_torch(**arguments)
    return None


def _launch_plan(
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
) -> Launched | None:
    verify, write = verify_plan_out, write_plan_out
    mapping, tokens = full_to_swa_index_mapping, req_to_verify_expected_tokens
    token_lens = req_to_verify_expected_tokens_valid_lens if tokens is not None else None
    bs, (max_reqs, max_len) = req_pool_indices.shape[0], req_to_token.shape
    window = min(swa_window_size, max_len) if swa_window_size > 0 else max_len
    tiling = next(tiling for tiling in TILINGS if bs <= tiling.block * tiling.chunks)
    log2_workers = _log2_workers(min(bs * window, verify_capacity), tiling)
    return launch(
        plan_kernel,
        (1 + (1 << log2_workers),),
        verify.verify_slot_indices,
        verify.verify_expected_tokens,
        verify.verify_expected_positions,
        verify.verify_prev_slot_indices,
        verify.verify_num_valid,
        verify.enable,
        write.write_offsets,
        write.write_seed_slot_indices,
        write.write_num_valid_reqs,
        req_pool_indices,
        prefix_lens,
        extend_seq_lens,
        req_to_token,
        mapping,
        tokens,
        token_lens,
        bs,
        max_reqs,
        max_len,
        req_to_token.stride(0),
        window,
        mapping.shape[0] if mapping is not None else 0,
        tokens.shape[0] if tokens is not None else 0,
        tokens.shape[1] if tokens is not None else 0,
        tokens.stride(0) if tokens is not None else 0,
        kv_token_id_vs_position_offset,
        verify_capacity,
        write.write_offsets.shape[0],
        log2_workers,
        device=req_pool_indices.device,
        BLOCK=tiling.block,
        CHUNKS=tiling.chunks,
        TILE=tiling.tile,
        INDEX=_index_dtype(req_to_token, tokens),
        VECTOR=tiling.vector,
        **early_start(req_pool_indices.device),
        num_warps=tiling.num_warps,
    )


def _index_dtype(*tables: torch.Tensor | None) -> tl.dtype:
    """What holds any row and column of these tables: 64 bits for every entry of a tile cost twice the registers."""
    narrow = all(max(table.shape) < 1 << 31 for table in tables if table is not None)
    return tl.int32 if narrow else tl.int64


def _log2_workers(most_entries: int, tiling: Tiling) -> int:
    """A worker for every tile of the largest plan that the call could make, rounded up to a power of two."""
    tiles = max(1, -(-most_entries // tiling.tile))
    return min(tiling.max_log2_workers, (tiles - 1).bit_length())


def _scatter_tokens(
    *, flat_in: torch.Tensor, offsets: torch.Tensor, req_pool_indices: torch.Tensor, pool_out: torch.Tensor
) -> Launched | None:
    """A checked call: the kernel where there is one, else plain PyTorch."""
    if not on_gpu(flat_in):
        launch_scatter_req_token_ids_kernel_torch_reference(
            flat_in=flat_in, offsets=offsets, req_pool_indices=req_pool_indices, pool_out=pool_out
        )
        return None
    rows, width = pool_out.shape
    return launch(
        scatter_tokens_kernel,
        (req_pool_indices.shape[0], min(MAX_SCATTER_PROGRAMS, -(-width // SCATTER_BLOCK))),
        flat_in,
        offsets,
        req_pool_indices,
        pool_out,
        flat_in.stride(0),
        offsets.stride(0),
        req_pool_indices.stride(0),
        pool_out.stride(0),
        pool_out.stride(1),
        flat_in.shape[0],
        rows,
        width,
        device=flat_in.device,
        BLOCK=SCATTER_BLOCK,
    )


_NUMBERS = ("swa_window_size", "verify_capacity", "kv_token_id_vs_position_offset")


def _flat(arguments: dict[str, Any]) -> dict[str, torch.Tensor | None]:
    """The tensors of a call under the names that the op gives them: a custom op takes no dataclasses."""
    verify, write = arguments["verify_plan_out"], arguments["write_plan_out"]
    plans = {
        "verify_slot_indices": verify.verify_slot_indices,
        "verify_expected_tokens": verify.verify_expected_tokens,
        "verify_expected_positions": verify.verify_expected_positions,
        "verify_prev_slot_indices": verify.verify_prev_slot_indices,
        "verify_num_valid": verify.verify_num_valid,
        "enable": verify.enable,
        "write_offsets": write.write_offsets,
        "write_seed_slot_indices": write.write_seed_slot_indices,
        "write_num_valid_reqs": write.write_num_valid_reqs,
    }
    others = ("verify_plan_out", "write_plan_out", *_NUMBERS)
    return plans | {name: value for name, value in arguments.items() if name not in others}


@torch.library.custom_op(
    "device_guards::canary_plan",
    mutates_args=(
        "verify_slot_indices",
        "verify_expected_tokens",
        "verify_expected_positions",
        "verify_prev_slot_indices",
        "verify_num_valid",
        "enable",
        "write_offsets",
        "write_seed_slot_indices",
        "write_num_valid_reqs",
    ),
)
def _plan_op(
    verify_slot_indices: torch.Tensor,
    verify_expected_tokens: torch.Tensor,
    verify_expected_positions: torch.Tensor,
    verify_prev_slot_indices: torch.Tensor,
    verify_num_valid: torch.Tensor,
    enable: torch.Tensor,
    write_offsets: torch.Tensor,
    write_seed_slot_indices: torch.Tensor,
    write_num_valid_reqs: torch.Tensor,
    req_pool_indices: torch.Tensor,
    prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    req_to_token: torch.Tensor,
    full_to_swa_index_mapping: torch.Tensor | None,
    req_to_verify_expected_tokens: torch.Tensor | None,
    req_to_verify_expected_tokens_valid_lens: torch.Tensor | None,
    swa_window_size: int,
    verify_capacity: int,
    kv_token_id_vs_position_offset: int,
) -> None:
    launch_canary_plan_kernels(
        verify_plan_out=VerifyPlan(
            verify_slot_indices=verify_slot_indices,
            verify_expected_tokens=verify_expected_tokens,
            verify_expected_positions=verify_expected_positions,
            verify_prev_slot_indices=verify_prev_slot_indices,
            verify_num_valid=verify_num_valid,
            enable=enable,
        ),
        write_plan_out=WritePlan(
            write_offsets=write_offsets,
            write_seed_slot_indices=write_seed_slot_indices,
            write_num_valid_reqs=write_num_valid_reqs,
        ),
        req_pool_indices=req_pool_indices,
        prefix_lens=prefix_lens,
        extend_seq_lens=extend_seq_lens,
        req_to_token=req_to_token,
        swa_window_size=swa_window_size,
        full_to_swa_index_mapping=full_to_swa_index_mapping,
        verify_capacity=verify_capacity,
        req_to_verify_expected_tokens=req_to_verify_expected_tokens,
        req_to_verify_expected_tokens_valid_lens=req_to_verify_expected_tokens_valid_lens,
        kv_token_id_vs_position_offset=kv_token_id_vs_position_offset,
    )


@_plan_op.register_fake
def _(*arguments: Any) -> None:
    """Nothing to infer. Checks are left to the run, where they raise the guard's own error, not a tracing one."""


@torch.library.custom_op("device_guards::scatter_req_token_ids", mutates_args=("pool_out",))
def _scatter_op(
    flat_in: torch.Tensor, offsets: torch.Tensor, req_pool_indices: torch.Tensor, pool_out: torch.Tensor
) -> None:
    launch_scatter_req_token_ids_kernel(
        flat_in=flat_in, offsets=offsets, req_pool_indices=req_pool_indices, pool_out=pool_out
    )


@_scatter_op.register_fake
def _(*arguments: Any) -> None:
    """Nothing to infer; see above."""
