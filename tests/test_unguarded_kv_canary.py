"""What becomes of the canary plan when nobody checks."""

from __future__ import annotations

import pytest
import torch

import kernels
from helpers.atlas import spec
from helpers.calls import Call, same_bits
from helpers.experiments._kv_canary_raw import guards_off, large_step
from helpers.explain import explain
from helpers.unguarded import experiment

PLAN = "launch_canary_plan_kernels"


def test_the_step_of_the_experiments_is_valid(device: torch.device) -> None:
    args = large_step(3, 16, device)
    kernels.launch_canary_plan_kernels(**args)
    plan = args["verify_plan_out"]
    assert plan.enable.item() == 1
    assert plan.verify_num_valid.item() == 48
    assert plan.verify_slot_indices.tolist() == list(range(16, 64))


def test_unguarded_means_without_any_check(device: torch.device) -> None:
    call = Call.valid(spec(PLAN), on=device)
    expected = call.spec.expected(call.args)
    call["verify_plan_out.enable"] = call["verify_plan_out.enable"].to(torch.int64)
    with pytest.raises(kernels.GuardError):
        call.run()
    with guards_off(on=device) as make_plan:
        make_plan(**call.args)
    assert same_bits(call["verify_plan_out.verify_slot_indices"], expected["verify_plan_out.verify_slot_indices"])
    with pytest.raises(kernels.GuardError):
        call.run()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the other half of this needs a GPU")
def test_without_a_gpu_the_experiments_say_so() -> None:
    outcome = experiment("kv_canary_cpu_pool_indices")
    assert outcome.kind == "completed"
    assert "the plan is right. There is no GPU here" in outcome.told
    assert "no GPU here" in experiment("kv_canary_pinned_pool_indices").told
    assert "no two GPUs here" in experiment("kv_canary_table_on_other_gpu").told


@pytest.mark.gpu
def test_triton_refuses_a_list_on_the_cpu_without_naming_it() -> None:
    outcome = experiment("kv_canary_cpu_pool_indices")
    assert (outcome.kind, outcome.error, outcome.poisoned) == ("exception", "ValueError", False)
    assert "req_pool_indices" not in outcome.told
    (finding,) = explain(f"ValueError: {outcome.told}").findings
    assert finding.id == "triton.pointer"


@pytest.mark.gpu
def test_a_pinned_list_is_right_and_slow() -> None:
    outcome = experiment("kv_canary_pinned_pool_indices")
    assert outcome.kind == "completed"
    assert "the plan is right" in outcome.told
    assert float(outcome.told.rpartition(" times as long")[0].split()[-1]) > 1


@pytest.mark.two_gpus
def test_a_table_on_the_other_gpu_ends_in_one_of_the_known_ways() -> None:
    outcome = experiment("kv_canary_table_on_other_gpu")
    assert "can_device_access_peer said" in outcome.output
    assert outcome.kind in ("completed", "exception", "illegal access")
