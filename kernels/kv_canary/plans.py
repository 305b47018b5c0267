"""The two plans that one canary step is made of."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.guards import GuardError, explain_refusal
from kernels.kv_canary.checks import check_verify_capacity, check_write_capacity


@dataclass(frozen=True, kw_only=True)
class VerifyPlan:
    """Which KV-cache slots to verify before a step, and what their canaries should say.

    Entries are filled from the front; those past the number of valid ones mean nothing.

    Attributes:
        verify_slot_indices: [verify_capacity] int64, the slot.
        verify_expected_tokens: [verify_capacity] int64, token id that it should hold, -1 if unknown.
        verify_expected_positions: [verify_capacity] int64, position of that token in its request.
        verify_prev_slot_indices: [verify_capacity] int64, slot of the position before, -1 at the start of a request.
        verify_num_valid: [1] int32, number of entries.
        enable: [1] int32, 0 when the entries did not fit and none was written, else 1.
    """

    verify_slot_indices: torch.Tensor
    verify_expected_tokens: torch.Tensor
    verify_expected_positions: torch.Tensor
    verify_prev_slot_indices: torch.Tensor
    verify_num_valid: torch.Tensor
    enable: torch.Tensor

    @classmethod
    def allocate(cls, *, verify_capacity: int, device: torch.device | str | int) -> VerifyPlan:
        """An empty plan with room for some entries.

        Args:
            verify_capacity: most entries that the plan can hold.
            device: where the canaries are.

        Raises:
            GuardError: (ValueError) when the capacity is not positive.
        """
        try:
            check_verify_capacity(verify_capacity)
        except GuardError as error:
            explain_refusal(error, "VerifyPlan.allocate", {})
            raise
        return cls(
            verify_slot_indices=torch.zeros(verify_capacity, dtype=torch.int64, device=device),
            verify_expected_tokens=torch.zeros(verify_capacity, dtype=torch.int64, device=device),
            verify_expected_positions=torch.zeros(verify_capacity, dtype=torch.int64, device=device),
            verify_prev_slot_indices=torch.zeros(verify_capacity, dtype=torch.int64, device=device),
            verify_num_valid=torch.zeros(1, dtype=torch.int32, device=device),
            enable=torch.ones(1, dtype=torch.int32, device=device),
        )


@dataclass(frozen=True, kw_only=True)
class WritePlan:
    """Where the chain links that a step writes start, request by request.

    Attributes:
        write_offsets: [write_req_capacity + 1] int64, first new link of each request among all new links, then their
            total, then zeros.
        write_seed_slot_indices: [write_req_capacity] int64, slot whose canary the first new link continues, -1 if it
            starts a chain.
        write_num_valid_reqs: [1] int32, number of requests.
    """

    write_offsets: torch.Tensor
    write_seed_slot_indices: torch.Tensor
    write_num_valid_reqs: torch.Tensor

    @classmethod
    def allocate(cls, *, write_req_capacity: int, device: torch.device | str | int) -> WritePlan:
        """An empty plan with room for some requests.

        Args:
            write_req_capacity: most requests that the plan can hold.
            device: where the canaries are.

        Raises:
            GuardError: (ValueError) when the capacity is not positive.
        """
        try:
            check_write_capacity(write_req_capacity)
        except GuardError as error:
            explain_refusal(error, "WritePlan.allocate", {})
            raise
        return cls(
            write_offsets=torch.zeros(write_req_capacity + 1, dtype=torch.int64, device=device),
            write_seed_slot_indices=torch.zeros(write_req_capacity, dtype=torch.int64, device=device),
            write_num_valid_reqs=torch.zeros(1, dtype=torch.int32, device=device),
        )
