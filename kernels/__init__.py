"""Four GPU kernels and the guards that keep their tensors on one device."""

from kernels.guards import GuardError, interpreter
from kernels.kda_replayssm.api import (
    fused_recurrent_kda_replayssm_decode,
    helion_fused_recurrent_kda_replayssm_decode,
)
from kernels.mamba_scatter.api import (
    MambaCaches,
    fused_conv_window_scatter_with_mask,
    fused_mamba_state_scatter_with_mask,
    scatter_mamba_states_after_mtp_verify,
)

__all__ = [
    "GuardError",
    "MambaCaches",
    "fused_conv_window_scatter_with_mask",
    "fused_mamba_state_scatter_with_mask",
    "fused_recurrent_kda_replayssm_decode",
    "helion_fused_recurrent_kda_replayssm_decode",
    "interpreter",
    "scatter_mamba_states_after_mtp_verify",
]
