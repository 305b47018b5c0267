"""What the prefill's experiments find when its guard is switched off."""

from __future__ import annotations

import pytest
import torch

from helpers.unguarded import experiment

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="the other half of this needs a GPU")


def test_statistics_in_one_buffer_are_mixed_up() -> None:
    outcome = experiment("sparse_mla_shared_statistics")
    assert outcome.kind == "completed"
    same, _, shifted = outcome.told.partition("; ")
    # One buffer cannot hold both, and what it holds is one of them.
    assert "both in one buffer: row 0 holds " in same
    assert "neither" not in outcome.told
    # The shifted row was written by two tokens.
    assert "row 0 holds max_logits of token 1" in shifted or "row 0 holds lse of token 0" in shifted
    assert shifted.endswith("row 1 holds lse of token 1")


@NO_GPU
def test_without_a_gpu_the_experiments_say_so() -> None:
    assert "the result is right. There is no GPU here" in experiment("sparse_mla_out_on_cpu").told
    for name in ("sparse_mla_pinned_out", "sparse_mla_length_check"):
        assert "there is no GPU here" in experiment(name).told
    assert "no two GPUs here" in experiment("sparse_mla_out_on_other_gpu").told


@pytest.mark.gpu
def test_an_out_on_the_cpu_is_not_written() -> None:
    outcome = experiment("sparse_mla_out_on_cpu")
    assert outcome.kind in ("exception", "illegal access", "killed")


@pytest.mark.gpu
def test_an_out_in_pinned_memory_is_right() -> None:
    assert "the result is right" in experiment("sparse_mla_pinned_out").told


@pytest.mark.gpu
def test_only_the_call_that_reads_no_values_can_be_captured() -> None:
    told = experiment("sparse_mla_length_check").told
    assert "the replay equals the eager call: True. With the check the capture failed: " in told
