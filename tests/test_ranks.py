"""Programs on two ranks: refused as the records say, right bit for bit, and never left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from helpers import plots, plots_ranks
from helpers.explain import explain
from helpers.rank_programs.rank import Rank, traceback_text
from helpers.ranks import RankRun, rank_program, run_ranks
from helpers.topology import is_stand_in

HELLO = "def main(rank, *words):\n    print(f'{rank.index} of {rank.size}', *words)\n"


def program(folder: Path, source: str) -> Path:
    path = folder / "program.py"
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return path


def is_running(pid: int) -> bool:
    """Whether the process runs; one that has ended but was not collected yet does not."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until(condition: object, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


# The three programs, wrong and right.


@pytest.fixture(scope="module")
def bare() -> RankRun:
    return run_ranks("tensor_parallel", "bare")


def test_a_bare_cuda_is_refused_on_rank_1_alone(bare: RankRun) -> None:
    assert not bare.succeeded
    assert bare.exit_codes == (-signal.SIGTERM, 1)
    assert bare.stopped == (0,)
    assert bare.endings == [
        "rank 0 waited for a rank that had failed and was stopped",
        "rank 1 ended with exit code 1",
    ]
    assert bare.placements[0]["out"] == bare.placements[1]["out"] == "cuda:0"
    assert (bare.placements[0]["q"], bare.placements[1]["q"]) == ("cuda:0", "cuda:1")


def test_the_log_is_that_of_a_launcher(bare: RankRun) -> None:
    lines = bare.log.splitlines()
    assert all(line.startswith(("[rank0]: ", "[rank1]: ")) for line in lines)
    assert "[rank1]: Traceback (most recent call last):" in lines
    assert "[rank1]: kernels.guards.DeviceError: out must be on device cuda:1, got cuda:0" in lines
    assert '[rank1]:   File "helpers/rank_programs/tensor_parallel.py"' in bare.log
    assert str(Path(__file__).parents[1]) not in bare.log
    assert not [line for line in lines if line.startswith("[rank0]") and "Error" in line]
    assert "File" not in bare.brief
    assert "DeviceError: out must be" in bare.brief


def test_explain_reads_the_log(bare: RankRun) -> None:
    (finding,) = explain(str(bare)).findings
    assert finding.message == "out must be on device cuda:1, got cuda:0"
    assert finding.ranks == ("rank1",)


def test_tensor_parallel_is_right_in_both_ways() -> None:
    run = run_ranks("tensor_parallel", "beside", "set_device")
    assert run.succeeded, str(run)
    assert run.lines[0][-1] == "2 ranks x 16 heads equal one process x 32, bit for bit: True"
    assert set(run.placements[1].values()) == {"cuda:1"}
    for lines in run.lines:
        assert [line for line in lines if "accepted" in line] == ["beside: accepted", "set_device: accepted"]


def test_lists_from_the_host_are_refused_on_both_ranks() -> None:
    run = run_ranks("expert_parallel", "as_received")
    assert run.exit_codes == (1, 1)
    message = "kv-canary: req_pool_indices must be on out_verify_offsets_scratch's device cuda:{}, got cpu"
    for rank, lines in enumerate(run.lines):
        assert f"kernels.guards.DeviceError: {message.format(rank)}" in lines


def test_expert_parallel_is_right_also_with_nothing_to_do() -> None:
    run = run_ranks("expert_parallel", "beside")
    assert run.succeeded, str(run)
    told = "\n".join(line for lines in run.lines for line in lines if line.startswith("step"))
    assert told.splitlines() == [
        "step 0: sent 4 requests, planned 2",
        "step 0: 11 entries equal one process's, bit for bit: True",
        "step 1: sent 1 requests, planned 1",
        "step 1: 4 entries equal one process's, bit for bit: True",
        "step 0: sent 0 requests, planned 2",
        "step 1: sent 0 requests, planned 0",
    ]


def test_the_pool_of_stage_0_is_refused_on_stage_1() -> None:
    run = run_ranks("pipeline_parallel", "as_told")
    assert run.exit_codes == (-signal.SIGTERM, 1)
    assert (
        "[rank1]: kernels.guards.DeviceError: dst and src must be on the same device. "
        "dst.device=device(type='cuda', index=0) src.device=device(type='cuda', index=1)"
    ) in run.log


def test_pipeline_parallel_is_right() -> None:
    run = run_ranks("pipeline_parallel", "beside")
    assert run.succeeded, str(run)
    assert run.lines[0][-1] == "2 stages x 2 layers equal one process x 4, bit for bit: True"


def test_a_comparison_that_fails_says_so(tmp_path: Path) -> None:
    source = rank_program("pipeline_parallel").read_text(encoding="utf-8")
    wrong = program(tmp_path, source.replace("torch.cat(parts)", "torch.cat(parts[::-1])"))
    assert run_ranks(wrong, "beside").lines[0][-1].endswith("bit for bit: False")


@pytest.mark.two_gpus
def test_two_gpus_talk_through_nccl_and_are_real(tmp_path: Path) -> None:
    source = """
        import torch, torch.distributed as dist
        def main(rank):
            with rank.gpus():
                tensor = rank.place(torch.full((2,), float(rank.index)))
            print(type(tensor).__name__, tensor.device, rank.numbers, dist.get_backend_config())
            print([part.tolist() for part in rank.gather(tensor)])
    """
    run = run_ranks(program(tmp_path, source))
    for rank, lines in enumerate(run.lines):
        assert lines[0].startswith(f"Tensor cuda:{rank} cuda:{rank} ")
        assert "nccl" in lines[0]
        assert lines[1] == "[[0.0, 0.0], [1.0, 1.0]]"


# The launcher.


def test_ranks_know_their_number_and_get_their_arguments(tmp_path: Path) -> None:
    run = run_ranks(program(tmp_path, HELLO), "a", "b", world_size=3)
    assert run.lines == (("0 of 3 a b",), ("1 of 3 a b",), ("2 of 3 a b",))
    assert run.log == "[rank0]: 0 of 3 a b\n[rank1]: 1 of 3 a b\n[rank2]: 2 of 3 a b"
    assert run.succeeded
    assert not run.stopped


def test_an_unknown_program_is_refused() -> None:
    with pytest.raises(KeyError, match="nothing"):
        run_ranks("nothing")


def test_a_rank_that_never_ends_is_stopped_and_gone(tmp_path: Path) -> None:
    source = """
        import os, time
        def main(rank):
            print(os.getpid(), flush=True)
            if rank.index == 1:
                time.sleep(600)
            rank.barrier()
    """
    run = run_ranks(program(tmp_path, source), timeout=10.0)
    assert run.timed_out
    assert run.stopped == (0, 1)
    assert run.endings[1] == "rank 1 took too long and was stopped"
    assert not [line for lines in run.lines for line in lines if is_running(int(line))]


def test_a_rank_that_fails_later_is_waited_for(tmp_path: Path) -> None:
    source = """
        import time
        def main(rank):
            rank.barrier()
            time.sleep(rank.index)
            raise RuntimeError(f"no {rank.index}")
    """
    run = run_ranks(program(tmp_path, source))
    assert run.exit_codes == (1, 1)
    assert [lines[-1] for lines in run.lines] == ["RuntimeError: no 0", "RuntimeError: no 1"]


def test_what_is_printed_before_a_vain_wait_is_kept(tmp_path: Path) -> None:
    source = """
        import time
        def main(rank):
            rank.barrier()
            if rank.index == 1:
                raise RuntimeError("at once")
            time.sleep(1.0)
            print("done before the wait")
            rank.gather(__import__("torch").zeros(1))
            print("never")
    """
    run = run_ranks(program(tmp_path, source))
    assert run.stopped == (0,)
    assert run.lines[0] == ("done before the wait",)


@pytest.mark.parametrize(
    ("death", "code", "told"),
    [
        ("os.kill(os.getpid(), 9)", -9, "rank 1 was ended by SIGKILL"),
        ("sys.exit(3)", 3, "rank 1 ended with exit code 3"),
    ],
)
def test_a_rank_that_dies_is_noticed(tmp_path: Path, death: str, code: int, told: str) -> None:
    source = f"""
        import os, sys, time
        def main(rank):
            if rank.index == 1:
                {death}
            time.sleep(1)
    """
    run = run_ranks(program(tmp_path, source))
    assert run.exit_codes[1] == code
    assert run.endings[1] == told


def test_what_libraries_write_is_no_part_of_the_log(tmp_path: Path) -> None:
    source = "import os\ndef main(rank):\n    os.write(2, b'from below')\n    print('from above')\n"
    run = run_ranks(program(tmp_path, source), world_size=1)
    assert run.log == "[rank0]: from above"
    assert run.noise == ("from below",)


def test_ranks_do_not_outlive_their_launcher(tmp_path: Path) -> None:
    source = f"""
        import os, pathlib, time
        def main(rank):
            (pathlib.Path({str(tmp_path)!r}) / f"pid{{rank.index}}").write_text(str(os.getpid()))
            time.sleep(600)
    """
    path = program(tmp_path, source)
    start = f"from pathlib import Path; from helpers.ranks import run_ranks; run_ranks(Path({str(path)!r}))"
    launcher = subprocess.Popen([sys.executable, "-c", start], cwd=Path(__file__).parents[1])
    files = [tmp_path / f"pid{rank}" for rank in range(2)]
    assert wait_until(lambda: all(file.exists() and file.read_text() for file in files), 60.0)
    launcher.kill()
    launcher.wait()
    assert wait_until(lambda: not any(is_running(int(file.read_text())) for file in files))


def test_ranks_listen_on_the_loopback_interface_only(tmp_path: Path) -> None:
    source = """
        import os
        from pathlib import Path
        LISTENS, LOOPBACK = "0A", ("0100007F", "0" * 24 + "01000000", "0" * 16 + "FFFF00000100007F")
        def main(rank):
            rank.barrier()
            links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
            own = {os.readlink(link) for link in links if os.path.islink(link)}
            tables = [table for table in map(Path, ("/proc/self/net/tcp", "/proc/self/net/tcp6")) if table.exists()]
            rows = [line.split() for table in tables for line in table.read_text().splitlines()[1:]]
            mine = [row[1].split(":")[0] for row in rows if f"socket:[{row[9]}]" in own and row[3] == LISTENS]
            print(len(mine) > 0, [address for address in mine if address not in LOOPBACK])
            rank.barrier()
    """
    run = run_ranks(program(tmp_path, source))
    assert run.succeeded, str(run)
    assert run.lines == (("True []",), ("True []",))


# What a program sees.


def test_a_bare_cuda_follows_set_device_also_among_stand_ins(tmp_path: Path) -> None:
    missing = torch.cuda.device_count() + 1
    rank = Rank(missing, missing + 1, tmp_path)
    with rank.gpus():
        first = torch.empty(2, device="cuda")
        torch.cuda.set_device("cuda:1")
        second = torch.empty(2, device="cuda")
    with rank.gpus():
        third = torch.empty(2, device="cuda")
    assert [str(tensor.device) for tensor in (first, second, third)] == ["cuda:0", "cuda:1", "cuda:1"]
    assert is_stand_in(first)
    assert not is_stand_in(torch.empty(2))


def test_a_traceback_begins_in_the_program() -> None:
    try:
        raise ValueError("first line\nsecond")
    except ValueError as error:
        error.add_note("a note")
        text = traceback_text(error, Path(__file__))
    assert text.splitlines()[0] == "Traceback (most recent call last):"
    assert text.splitlines()[1].startswith('  File "tests/test_ranks.py", line ')
    assert text.endswith("ValueError: first line\nsecond\na note\n")
    assert "^" not in text


# The picture.


def test_the_picture_tells_who_has_what_where() -> None:
    picture = plots_ranks.draw_ranks([{"q": "cuda:0", "out": "cuda:0"}, {"q": "cuda:1", "out": "cuda:0"}])
    assert picture.alt == (
        "Rank 0 has q, out on its own GPU, cuda:0. Rank 1 has q on its own GPU, cuda:1; astray: out on cuda:0."
    )
    assert plots.png(picture.figure).startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="no rank"):
        plots_ranks.draw_ranks([{}, {}])
    assert "nothing on its own GPU" in plots_ranks.draw_ranks([{"a": "cpu"}]).alt
