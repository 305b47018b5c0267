"""The kernels under compute-sanitizer: no access out of bounds, no race in shared memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sanitized_calls import CALLS, HANDED_OVER, PLANTED, Sanitized

pytestmark = [pytest.mark.gpu, pytest.mark.sanitizer]
TESTS = Path(__file__).parent


def sanitize(name: str, call: Sanitized, tool: str) -> tuple[int, str]:
    """Exit status and output of a call under a tool, which watches the kernel of that call alone."""
    command = ["compute-sanitizer", "--tool", tool, "--kernel-name", f"kns={call.kernel}", "--error-exitcode", "99"]
    command += [sys.executable, str(TESTS / "sanitized_calls.py"), name]
    path = os.pathsep.join(filter(None, [str(TESTS.parent), os.environ.get("PYTHONPATH")]))
    # Without PyTorch's pool of memory every tensor is an allocation, with bounds that the tool knows.
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
@pytest.mark.parametrize("name", CALLS)
def test_sanitizer_finds_nothing(name: str, tool: str) -> None:
    status, output = sanitize(name, CALLS[name], tool)
    assert f"{name}: error" in output, output[-6000:]
    if (name, tool) == ("prefill", "racecheck"):
        assert all(line.startswith(ROLES) for line in hazards(output)), output[-6000:]
    else:
        assert status == 0, output[-6000:]


# How Triton itself tells waiting warps which role to take: a word in shared memory between two barriers, reported for
# the smallest kernel with roles as well (tested below, so that this exception goes when the report does).
ROLES = ("def sparse_mla_hopper_kernel(", "def hand_over(", "gl.warp_specialize(")


def hazards(output: str) -> set[str]:
    """The lines of source that racecheck reports."""
    found = re.findall(r"(?:Read|Write) access at \S+ in (\S+):(\d+)", output)
    folders = (TESTS, TESTS.parent / "kernels" / "sparse_mla")
    sources = {path.name: path.read_text().splitlines() for folder in folders for path in folder.glob("*.py")}
    return {sources[Path(name).name][int(line) - 1].strip() for name, line in found}


def test_racecheck_reports_the_roles_of_any_kernel_that_has_them() -> None:
    status, output = sanitize("handed_over", HANDED_OVER, "racecheck")
    assert "handed_over: error 0" in output, output[-6000:]
    assert status == 99
    assert all(line.startswith(ROLES) for line in hazards(output)), output[-6000:]


def test_sanitizer_finds_what_was_planted() -> None:
    status, output = sanitize("planted", PLANTED, "memcheck")
    assert status == 99, output[-6000:]
    assert "Invalid __global__ write of size 4 bytes" in output
