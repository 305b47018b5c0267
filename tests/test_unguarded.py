"""Code without guards runs in a process of its own, whatever it does to that process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

from helpers import unguarded
from helpers.explain import explain
from helpers.topology import HOME, OTHER, exists
from helpers.unguarded import Outcome, experiment, experiments, run_unguarded


def add() -> str:
    import math

    return f"{math.sqrt(16):.0f} and {1 + 2}"


def alive(pid: int) -> bool:
    """Whether the process runs; one that has ended but was not collected yet does not."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def gone(pid: int, within: float = 5.0) -> bool:
    """Whether the process ends in time: a signal that was sent takes a moment to arrive."""
    deadline = time.monotonic() + within
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


def test_a_function_runs_elsewhere_and_answers() -> None:
    outcome = run_unguarded(add)
    assert (outcome.kind, outcome.told, outcome.poisoned) == ("completed", "4 and 3", None)
    assert str(outcome) == "completed: 4 and 3"
    assert outcome.seconds > 0


def test_text_and_files_leave_word_in_a_variable(tmp_path: Path) -> None:
    text = """
        import os
        told = os.getpid()
    """
    assert int(run_unguarded(text).told) != os.getpid()
    file = tmp_path / "code.py"
    file.write_text("import kernels\ntold = kernels.__name__\nprint('hello')")
    outcome = run_unguarded(file)
    assert (outcome.told, outcome.output) == ("kernels", "hello\n")


def test_silence_is_completed_too() -> None:
    assert run_unguarded("pass").verdict == "completed"


def test_an_exception_comes_back_with_its_message() -> None:
    outcome = run_unguarded("raise ValueError('first line\\nsecond line')")
    assert (outcome.kind, outcome.error, outcome.told) == ("exception", "ValueError", "first line\nsecond line")
    assert outcome.verdict == "ValueError: first line"


def test_code_that_does_not_parse_is_an_exception() -> None:
    assert run_unguarded("def").error == "SyntaxError"


def test_a_signal_is_named() -> None:
    outcome = run_unguarded("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert (outcome.kind, outcome.verdict) == ("killed", "the process was killed by SIGSEGV")


def test_a_process_that_leaves_early_is_told() -> None:
    assert run_unguarded("import os; os._exit(3)").verdict == "SystemExit: exit status 3"
    assert run_unguarded("import sys; sys.exit(4)").verdict == "SystemExit: exit status 4"


def test_an_endless_process_is_killed_with_its_children() -> None:
    code = """
        import subprocess, time
        print(subprocess.Popen(["sleep", "60"]).pid, flush=True)
        time.sleep(60)
    """
    outcome = run_unguarded(code, timeout=5)
    assert (outcome.kind, outcome.verdict) == ("timeout", "no end after 5 s; the process was killed")
    assert outcome.seconds < 20
    assert gone(int(outcome.output))


def test_much_output_neither_blocks_nor_fills_the_outcome() -> None:
    outcome = run_unguarded("print('x' * 1_000_000); print('end')")
    assert outcome.output.endswith("x\nend\n")
    assert len(outcome.output) == 4000


def test_only_plain_functions_can_be_sent() -> None:
    with pytest.raises(ValueError, match="plain function"):
        run_unguarded(lambda: 1)


def test_an_illegal_access_is_told_with_what_follows() -> None:
    message = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported later"
    outcome = run_unguarded(f"raise RuntimeError({message!r})")
    assert outcome.kind == "illegal access"
    poisoned = Outcome(outcome.kind, outcome.told, outcome.error, poisoned=True)
    assert poisoned.verdict == (
        "RuntimeError: CUDA error: an illegal memory access was encountered; "
        "after that, CUDA was unusable in that process"
    )


# The experiments.


def test_an_unknown_experiment_is_refused() -> None:
    with pytest.raises(KeyError, match="mamba_scatter_cpu_index"):
        experiment("nothing")


@pytest.mark.parametrize("path", experiments().values(), ids=list(experiments()))
def test_experiments_tell_what_they_do(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert source.startswith('"""')
    assert "told = " in source


def test_a_slot_of_minus_one_hits_a_neighbour_on_every_machine() -> None:
    assert experiment("mamba_scatter_slot_minus_one").told == (
        "the kernel overwrote the memory before the pool and slot 3 of layer 0; "
        "dst[:, slots] = ... in PyTorch overwrites slot 3 of every layer"
    )


def test_a_wild_slot_ends_the_process_or_its_cuda() -> None:
    outcome = experiment("mamba_scatter_wild_slot")
    if torch.cuda.is_available():
        assert (outcome.kind, outcome.poisoned) == ("illegal access", True)
    else:
        assert outcome.verdict == "the process was killed by SIGSEGV"


@pytest.mark.skipif(torch.cuda.is_available(), reason="the other half of this needs a GPU")
def test_without_a_gpu_the_experiments_say_so() -> None:
    outcome = experiment("mamba_scatter_cpu_index")
    assert outcome.kind == "completed"
    assert "the result is right. There is no GPU here" in outcome.told
    assert "no GPU here" in experiment("mamba_scatter_pinned_scratch").told


@pytest.mark.gpu
def test_triton_refuses_an_index_on_the_cpu_and_explain_knows_it() -> None:
    outcome = experiment("mamba_scatter_cpu_index")
    assert (outcome.kind, outcome.error, outcome.poisoned) == ("exception", "ValueError", False)
    (finding,) = explain(f"state_scatter_kernel\nValueError: {outcome.told}").findings
    assert finding.id == "triton.pointer"
    assert "slots_ptr" in finding.details[0]


@pytest.mark.gpu
def test_a_pinned_scratch_is_right_and_slow() -> None:
    outcome = experiment("mamba_scatter_pinned_scratch")
    assert outcome.kind == "completed"
    assert "the result is right" in outcome.told
    assert int(outcome.told.rpartition(" times as long")[0].split()[-1]) > 2


@pytest.mark.gpu
def test_a_healthy_cuda_is_not_called_poisoned() -> None:
    outcome = run_unguarded("import torch; told = torch.ones(3, device='cuda').sum().item()")
    assert (outcome.told, outcome.poisoned) == ("3.0", False)


WANTED = {path.stem: path for path in experiments().values() if "missing = " in path.read_text(encoding="utf-8")}


@pytest.mark.parametrize("name", WANTED)
def test_what_is_missing_is_known_without_a_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the experiment says for itself where it is run all the same, it says without being run."""
    device = OTHER if "exists(topology.OTHER)" in WANTED[name].read_text(encoding="utf-8") else HOME
    if exists(device):
        pytest.skip("this machine has all that is needed")
    told = run_unguarded(WANTED[name])
    monkeypatch.setattr(unguarded, "run_unguarded", None)
    assert (told.kind, told.told) == ("not run", experiment(name).told)
    assert str(experiment(name)) == f"not run: {told.told}"
