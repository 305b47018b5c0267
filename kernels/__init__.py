"""Four GPU kernels and the guards that keep their tensors on one device."""

from kernels.guards import GuardError, interpreter
from kernels.kda_replayssm.api import (
    fused_recurrent_kda_replayssm_decode,
    helion_fused_recurrent_kda_replayssm_decode,
)
from kernels.kv_canary.api import launch_canary_plan_kernels, launch_scatter_req_token_ids_kernel
from kernels.kv_canary.plans import VerifyPlan, WritePlan
from kernels.kv_canary.reference import (
    launch_canary_plan_kernels_torch_reference,
    launch_scatter_req_token_ids_kernel_torch_reference,
)
from kernels.mamba_scatter.api import (
    MambaCaches,
    fused_conv_window_scatter_with_mask,
    fused_mamba_state_scatter_with_mask,
    scatter_mamba_states_after_mtp_verify,
)
from kernels.sparse_mla.api import pad_q8kv8_heads, q8kv8_padded_num_heads, sparse_mla_q8kv8_prefill_fwd

__all__ = [
    "GuardError",
    "MambaCaches",
    "VerifyPlan",
    "WritePlan",
    "fused_conv_window_scatter_with_mask",
    "fused_mamba_state_scatter_with_mask",
    "fused_recurrent_kda_replayssm_decode",
    "helion_fused_recurrent_kda_replayssm_decode",
    "interpreter",
    "launch_canary_plan_kernels",
    "launch_canary_plan_kernels_torch_reference",
    "launch_scatter_req_token_ids_kernel",
    "launch_scatter_req_token_ids_kernel_torch_reference",
    "pad_q8kv8_heads",
    "q8kv8_padded_num_heads",
    "scatter_mamba_states_after_mtp_verify",
    "sparse_mla_q8kv8_prefill_fwd",
]
