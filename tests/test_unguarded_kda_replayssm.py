"""What becomes of the ReplaySSM decode when nobody checks."""

from __future__ import annotations

import pytest
import torch

import kernels
from helpers.experiments._kda_replayssm_raw import guards_off
from helpers.explain import explain
from helpers.serving_kda_replayssm import serving_step
from helpers.unguarded import experiment


def test_unguarded_means_without_any_check(device: torch.device) -> None:
    args = serving_step(2, 1, device, heads=1, size=16, length=4)
    args["write_pos"] = args["write_pos"].long()
    with pytest.raises(kernels.GuardError):
        kernels.helion_fused_recurrent_kda_replayssm_decode(**args)
    with guards_off():
        kernels.helion_fused_recurrent_kda_replayssm_decode(**args)
    assert not args["out"].isnan().any()
    with pytest.raises(kernels.GuardError):
        kernels.helion_fused_recurrent_kda_replayssm_decode(**args)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the other half of this needs a GPU")
def test_without_a_gpu_the_experiments_say_so() -> None:
    outcome = experiment("kda_replayssm_cpu_ring")
    assert outcome.kind == "completed"
    assert "the result is right. There is no GPU here" in outcome.told
    assert "no GPU here" in experiment("kda_replayssm_pinned_ring").told


@pytest.mark.gpu
def test_triton_refuses_a_ring_on_the_cpu_without_naming_it() -> None:
    outcome = experiment("kda_replayssm_cpu_ring")
    assert (outcome.kind, outcome.error, outcome.poisoned) == ("exception", "ValueError", False)
    assert "d_cache" not in outcome.told
    (finding,) = explain(f"ValueError: {outcome.told}").findings
    assert finding.id == "triton.pointer"


@pytest.mark.gpu
def test_pinned_rings_are_right_and_slow() -> None:
    outcome = experiment("kda_replayssm_pinned_ring")
    assert outcome.kind == "completed"
    assert "the result is right" in outcome.told
    assert int(outcome.told.rpartition(" times as long")[0].split()[-1]) > 2
