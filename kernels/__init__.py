"""Four GPU kernels and the guards that keep their tensors on one device."""

from kernels.guards import GuardError, interpreter
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
    "interpreter",
    "scatter_mamba_states_after_mtp_verify",
]
