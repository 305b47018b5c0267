"""The explainer finds the right record in whatever people paste, at once and without torch."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import textwrap
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import triton
from triton.runtime.jit import JITFunction

from helpers import topology
from helpers.atlas import Record, records, spec
from helpers.calls import Call
from helpers.explain import UnreadableInputError, explain, explain_file, load_ipython_extension, main, notebook_link
from helpers.tracebacks.findings import findings
from helpers.tracebacks.foreign import FOREIGN
from helpers.tracebacks.logs import Line, clean, windows
from helpers.tracebacks.parameters import kernels, launches
from helpers.tracebacks.wordings import Wording

DEVICE = "mamba_scatter.state.device"
MESSAGE = (
    "dst and src must be on the same device. "
    "dst.device=device(type='cuda', index=0) src.device=device(type='cuda', index=1)"
)
POINTER = "Pointer argument (at {}) cannot be accessed from Triton (cpu tensor?)"
POINTER_WITHOUT_POSITION = "Pointer argument cannot be accessed from Triton (cpu tensor?)"
EVERY_RECORD = pytest.mark.parametrize("record", records().values(), ids=list(records()))


def command(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "helpers.explain", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )


def raised_by(record: Record) -> BaseException:
    call = Call.valid(spec(record.function))
    record.provoke(call)
    try:
        with record.context():
            call.run()
    except ValueError as error:
        return error
    except (TypeError, RuntimeError) as error:
        return error
    raise AssertionError("accepted")


def by_characters(text: str, width: int) -> str:
    return "\n".join(text[at : at + width] for at in range(0, len(text), width))


def by_words(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, width, break_long_words=False))


@EVERY_RECORD
def test_every_message_is_recognised_and_names_its_record(record: Record) -> None:
    (finding,) = explain(record.example).findings
    assert finding.id == record.guard
    assert finding.message == record.example
    assert record.id in finding.records


@EVERY_RECORD
def test_a_real_traceback_leads_to_the_record_itself(record: Record) -> None:
    text = "".join(traceback.format_exception(raised_by(record)))
    (finding,) = explain(text).findings
    assert record.id in finding.records
    assert finding.message == record.example
    assert finding.functions == (record.function,)


@EVERY_RECORD
@pytest.mark.parametrize("wrap", [by_characters, by_words])
@pytest.mark.parametrize("width", [37, 80])
def test_a_terminals_line_wraps_do_not_matter(record: Record, wrap: Callable[[str, int], str], width: int) -> None:
    (finding,) = explain(wrap(f"[rank3]: kernels.guards.{record.error}: {record.example}", width)).findings
    assert finding.message == record.example
    assert record.id in finding.records
    assert finding.ranks == ("rank3",)


@pytest.mark.parametrize("width", range(16, 140))
def test_wraps_at_any_column(width: int) -> None:
    (finding,) = explain(by_characters(f"[rank1]: ValueError: {MESSAGE}", width)).findings
    assert (finding.id, finding.message) == (DEVICE, MESSAGE)


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("[rank1]: {}", "rank1"),
        ("[1] {}", "rank1"),
        ("[1,0]<stderr>: {}", "rank0"),
        ("[default2]: {}", "default2"),
        ("1: {}", "rank1"),
        ("(Worker_TP1 pid=4242) {}", "Worker_TP1 pid=4242"),
        ("(RayWorkerWrapper pid=7, ip=10.0.0.2) {}", "RayWorkerWrapper pid=7, ip=10.0.0.2"),
        ("[2026-08-28 05:10:05 TP1] {}", "TP1"),
        ("[2026-08-28 05:10:05 DP0 TP3] {}", "DP0 TP3"),
        ("2026-08-28T05:10:05.995Z [rank1]: {}", "rank1"),
        ("(Worker_TP1 pid=4242) ERROR 08-28 05:10:05 [multiproc.py:559] {}", "Worker_TP1 pid=4242"),
        ("server-1  | {}", "server-1"),
        ("E0828 05:10:05.123456 4242 worker.py:7] {}", ""),
        ("\x1b[31m[rank1]:\x1b[0m \x1b[1;38;5;9m{}\x1b[0m", "rank1"),
        ("step 3/9 [##   ]\r[rank1]: {}\r", "rank1"),
        ("  | {}", ""),
        ('{{"level": "error", "message": "Traceback\\nValueError: {}\\nnext"}}', ""),
    ],
)
def test_rank_prefixes_colours_and_escapes_come_off(line: str, rank: str) -> None:
    (finding,) = explain(line.format(f"ValueError: {MESSAGE}")).findings
    assert (finding.id, finding.message) == (DEVICE, MESSAGE)
    assert finding.ranks == ((rank,) if rank else ())


def test_the_notes_of_each_rank_are_told_apart() -> None:
    log = """\
        [rank0]: Traceback (most recent call last):
        [rank1]: Traceback (most recent call last):
        [rank1]:   File "/srv/engine/worker.py", line 5, in step
        [rank0]:   File "/srv/engine/worker.py", line 5, in step
        [rank0]: ValueError: dst and src must be on the same device. dst.device=device(type='cpu') src.device=device(type='cuda', index=0)
        [rank1]: ValueError: dst and src must be on the same device. dst.device=device(type='cuda', index=1) src.device=device(type='cuda', index=0)
        [rank0]: odd one out: dst on cpu; the other 3 on cuda:0
        [rank1]: odd one out: src on cuda:0; the other 3 on cuda:1
        [rank1]: placement: dst cuda:1, src cuda:0, dst_indices_raw cuda:1, step_
        indices_raw cuda:1
        [rank1]: fix: src = src.to(dst.device)
        [rank0]: fix: dst = dst.to(src.device)
        [rank1]: INFO shutting down
    """  # noqa: E501
    first, second = explain(textwrap.dedent(log)).findings
    assert (first.ranks, first.arguments) == (("rank0",), ("dst",))
    assert first.details == ("odd one out: dst on cpu; the other 3 on cuda:0", "fix: dst = dst.to(src.device)")
    assert (second.ranks, second.arguments) == (("rank1",), ("src",))
    assert second.details == (
        "odd one out: src on cuda:0; the other 3 on cuda:1",
        "placement: dst cuda:1, src cuda:0, dst_indices_raw cuda:1, step_indices_raw cuda:1",
        "fix: src = src.to(dst.device)",
    )


def test_one_error_on_many_ranks_and_steps_is_one_finding() -> None:
    log = "\n".join(f"[rank{rank}]: ValueError: {MESSAGE}" for rank in (0, 1, 0, 1, 2))
    (finding,) = explain(f"starting\n{log}").findings
    assert (finding.count, finding.ranks, finding.line) == (5, ("rank0", "rank1", "rank2"), 2)


def test_a_chain_is_told_root_cause_first() -> None:
    try:
        try:
            raise raised_by(records()[f"{DEVICE}/src"])
        except ValueError as error:
            raise RuntimeError("CUDA error: an illegal memory access was encountered") from error
    except RuntimeError as error:
        text = "".join(traceback.format_exception(error))
    first, second = explain(text).findings
    assert (first.records, second.id) == ((f"{DEVICE}/src",), "cuda.illegal_access")


def test_without_evidence_a_guard_is_shown_once_with_all_its_arguments() -> None:
    example = records()["mamba_scatter.cache.tracking/mamba_track_indices"].example
    (finding,) = explain(example).findings
    assert set(finding.arguments) == {"mamba_track_indices", "mamba_steps_to_track"}
    assert "mamba_steps_to_track or mamba_track_indices" in explain(example).text(width=200)


@pytest.mark.parametrize(
    ("dst", "src", "arguments"),
    [
        ("type='cuda', index=0", "type='cuda', index=1", {"dst", "src"}),
        ("type='cpu'", "type='cuda', index=0", {"dst"}),
        ("type='cuda', index=1", "type='cpu'", {"src"}),
    ],
)
def test_devices_in_the_message_accuse_only_where_they_prove_it(dst: str, src: str, arguments: set[str]) -> None:
    message = f"dst and src must be on the same device. dst.device=device({dst}) src.device=device({src})"
    (finding,) = explain(message).findings
    assert set(finding.arguments) == arguments


def test_the_function_in_the_traceback_tells_twins_apart() -> None:
    message = "dst_indices_raw must be on dst's device cuda:0, got cpu"
    assert len(explain(message).findings[0].functions) == 2
    frame = 'File "/srv/kernels/mamba_scatter/api.py", line 94, in fused_conv_window_scatter_with_mask\n'
    (finding,) = explain(f"Traceback (most recent call last):\n  {frame}ValueError: {message}").findings
    assert finding.functions == ("fused_conv_window_scatter_with_mask",)
    assert finding.records == ("mamba_scatter.index.device/dst_indices_raw@conv",)


@pytest.mark.parametrize(
    "text",
    [
        "weights must be on dst's device cuda:0, got cpu",
        "ValueError: tensors are on different devices",
        "the launch is fine",
        "dst and src\nmust\n\nhappen",
    ],
)
def test_foreign_sentences_are_not_mistaken_for_guards(text: str) -> None:
    assert explain(text).findings == ()


def test_the_template_of_an_error_page_is_recognised() -> None:
    (finding,) = explain("dst and src must be on the same device. {dst.device=} {src.device=}").findings
    assert finding.id == DEVICE


def test_a_source_line_with_the_template_does_not_count_beside_the_message() -> None:
    source = "    raise ValueError(f'src must be there; Unexpected tensor ranks: {dst.ndim=} {src.ndim=}')"
    (finding,) = explain(f"{source}\nValueError: Unexpected tensor ranks: dst.ndim=1 src.ndim=5").findings
    assert finding.message == "Unexpected tensor ranks: dst.ndim=1 src.ndim=5"


@pytest.mark.parametrize(("size", "margin"), [(1, 12), (3, 12), (7, 20), (1000, 150)])
def test_the_cut_into_windows_does_not_show(size: int, margin: int) -> None:
    lines = [f"line {number}" for number in range(40)]
    lines[17:18] = [f"[rank1]: ValueError: {MESSAGE[:60]}", MESSAGE[60:], "odd one out: src on cuda:1; the rest"]
    found = [finding for window in windows(clean(lines), size=size, margin=margin) for finding in findings(window)]
    assert [(finding.line, finding.arguments) for finding in found] == [(18, ("src",))]


def test_windows_cover_every_line_once() -> None:
    lines = [Line(number, "", False, "") for number in range(1, 57)]
    cut = [window.lines[window.first : window.end] for window in windows(lines, size=10, margin=3)]
    assert [line for part in cut for line in part] == lines


# Errors of Triton, PyTorch, CUDA and NCCL.


@pytest.mark.parametrize("entry", FOREIGN, ids=[entry.id for entry in FOREIGN])
def test_foreign_errors_are_recognised_in_each_wording(entry: object) -> None:
    for message in entry.messages:  # type: ignore[attr-defined]
        text = message.format_map(dict.fromkeys(Wording(message).fields, "3"))
        assert [finding.id for finding in explain(f"[rank1]: RuntimeError: {text}").findings] == [entry.id]  # type: ignore[attr-defined]


def test_the_wording_of_the_installed_triton_is_known() -> None:
    backend = Path(triton.__file__).parent / "backends" / "nvidia"
    source = "".join(path.read_text() for path in sorted(backend.glob("driver.*")))
    message = re.search(r"Pointer argument[^\"]*cpu tensor\?\)", re.sub(r'"\s*"', "", source))
    assert message is not None
    (finding,) = explain(message[0].replace("%d", "2")).findings
    assert finding.id == "triton.pointer"


def test_pytorchs_own_sentence_is_known() -> None:
    ours, theirs = (
        topology.stand_in((2, 2), None, torch.float32, device) for device in (topology.HOME, topology.OTHER)
    )
    with pytest.raises(RuntimeError) as caught:
        torch.add(ours, theirs)
    (finding,) = explain("".join(traceback.format_exception(caught.value))).findings
    assert finding.id == "torch.two_devices"


def test_signatures_read_from_the_sources_are_tritons_own() -> None:
    root = Path(__file__).resolve().parents[1]
    modules = (importlib.import_module(f"kernels.{p.parent.name}.{p.stem}") for p in (root / "kernels").glob("*/*.py"))
    found = {
        name: value.arg_names
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, JITFunction) and not name.startswith("_")
    }
    assert {name: list(kernel.parameters) for name, kernel in kernels().items()} == found
    assert {launch.kernel for launch in launches()} == set(found)


def pointer_traceback(message: str, function: str = "_launch_state") -> str:
    return f"""\
Traceback (most recent call last):
  File "/home/me/serve.py", line 12, in step
    scatter(pool, scratch, slots, steps)
  File "/opt/app/kernels/mamba_scatter/api.py", line 174, in {function}
    launch(
  File "/opt/app/kernels/launch.py", line 42, in launch
    kernel[grid](*args, **options)
  File "/opt/venv/lib/python3.12/site-packages/triton/backends/nvidia/driver.py", line 713, in __call__
    self.launch(gridX, gridY, gridZ, stream, function, self.launch_cooperative_grid, self.launch_pdl,
ValueError: {message}
"""


def test_tritons_position_is_given_its_name() -> None:
    (finding,) = explain(pointer_traceback(POINTER.format(2))).findings
    assert finding.details == (
        "parameter 2 of state_scatter_kernel, counted from 0, is slots_ptr, where the launch passes slots",
    )


def test_tritons_wording_without_a_position_lists_the_pointers() -> None:
    (finding,) = explain(pointer_traceback(POINTER_WITHOUT_POSITION, "_launch_conv")).findings
    (detail,) = finding.details
    assert "conv_window_scatter_kernel's dst_ptr, src_ptr, slots_ptr, steps_ptr" in detail


def test_a_position_without_a_pointer_is_not_believed() -> None:
    (finding,) = explain(pointer_traceback(POINTER.format(-1823))).findings
    assert "no pointer at -1823" in finding.details[0]


def test_the_innermost_launch_of_a_traceback_is_meant() -> None:
    # _launch launches the portable kernel, but here it has called what launches the one for Hopper.
    lines = [
        '  File "/opt/app/kernels/sparse_mla/api.py", line 179, in _launch',
        "    hopper.prefill(*inputs, out, max_logits, lse)",
        '  File "/opt/app/kernels/sparse_mla/hopper.py", line 545, in prefill',
        "    launch(",
        f"ValueError: {POINTER.format(12)}",
    ]
    assert explain("\n".join(lines)).findings[0].details == (
        "sparse_mla_hopper_kernel has no pointer at 12: Triton's AMD launcher prints a number that means nothing",
    )
    lines[-1] = f"ValueError: {POINTER.format(7)}"
    (detail,) = explain("\n".join(lines)).findings[0].details
    assert detail.startswith("parameter 7 of sparse_mla_hopper_kernel, counted from 0, is out_ptr")


def test_a_raw_launch_shows_the_kernel_by_name() -> None:
    text = f"    state_scatter_kernel[grid](dst, src, slots.cpu(), steps)\nValueError: {POINTER.format(2)}"
    assert explain(text).findings[0].details[0].startswith("parameter 2 of state_scatter_kernel, counted from 0, is sl")


def test_a_foreign_kernels_position_is_explained() -> None:
    (finding,) = explain(f"ValueError: {POINTER.format(4)}").findings
    assert finding.details == ("position 4 counts the kernel's parameters from 0, constexpr ones included",)


# Nothing recognised.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ValueError: dst and source must be on same device", DEVICE),
        (
            "[rank1]: RuntimeError: dst_indices_raw must be at dst's device cuda:0 but got cpu",
            "mamba_scatter.index.device",
        ),
        ("Expected all the tensors on the same device, found two devices, cuda:0 and cpu!", "torch.two_devices"),
    ],
)
def test_near_misses_are_ranked(text: str, expected: str) -> None:
    explanation = explain(f"starting up\n{text}\nbye")
    assert explanation.findings == ()
    assert explanation.near_misses[0].id == expected
    assert explanation.near_misses[0].line == 2
    likeness = [miss.likeness for miss in explanation.near_misses]
    assert likeness == sorted(likeness, reverse=True)


def test_nothing_alike_is_said_plainly() -> None:
    explanation = explain("KeyError: 'model'")
    assert explanation.near_misses == ()
    assert "nothing recognised" in explanation.text()


@pytest.mark.parametrize("text", ["", "\n \n", "[rank1]: \n"])
def test_an_empty_input_is_an_error(text: str) -> None:
    with pytest.raises(UnreadableInputError, match="empty"):
        explain(text)


# The command line.


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def write(name: str, content: bytes) -> str:
        (tmp_path / name).write_bytes(content)
        return str(tmp_path / name)

    assert main([write("good", MESSAGE.encode())]) == 0
    assert main([write("utf16", MESSAGE.encode("utf-16"))]) == 0
    assert main([write("marked", b"\xef\xbb\xbf" + MESSAGE.encode())]) == 0
    assert main([write("unknown", b"KeyError: 'model'")]) == 1
    assert main([write("latin", "Fehler: für nichts".encode("latin-1"))]) == 1
    capsys.readouterr()
    for path in (write("empty", b""), write("binary", b"\x7fELF\0\0\0"), str(tmp_path), str(tmp_path / "absent")):
        assert main([path]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("explain: ")


def test_standard_input_and_json() -> None:
    result = command("--json", stdin=f"[rank1]: ValueError: {MESSAGE}\n")
    assert result.returncode == 0
    (finding,) = json.loads(result.stdout)["findings"]
    assert finding["id"] == DEVICE
    assert finding["ranks"] == ["rank1"]
    assert (finding["notebook"], finding["section"]) == ("mamba_scatter", "the-error-in-the-wild")


def test_only_the_first_errors_are_shown_unless_all_are_asked_for() -> None:
    log = "\n".join(record.example for record in records().values())
    assert "--all shows them" in command(stdin=log).stdout
    shown = command("--all", stdin=log).stdout
    assert "--all" not in shown
    assert all(record.fix.split()[0] in shown for record in records().values())


def test_it_answers_at_once_and_without_torch() -> None:
    code = (
        "import sys; from helpers.explain import main; code = main(); "
        "heavy = {'torch', 'triton', 'numpy', 'IPython'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    times = []
    for _ in range(3):
        started = time_of_children()
        result = subprocess.run(
            [sys.executable, "-c", code], input=pointer_traceback(POINTER.format(2)), capture_output=True, text=True
        )
        times.append(time_of_children() - started)
        assert result.returncode == 0, result.stderr
    assert min(times) < 0.5


def test_a_reader_who_has_read_enough_is_no_error() -> None:
    listing = "\n".join(record.example for record in records().values())
    command = f"{sys.executable} -m helpers.explain --all | head -1"
    result = subprocess.run(["bash", "-c", command], input=listing, capture_output=True, text=True)
    assert result.stdout.count("\n") == 1
    assert result.stderr == ""


def time_of_children() -> float:
    # On the processor, not on the clock: other tests that run at the same time must not count.
    spent = os.times()
    return spent.children_user + spent.children_system


def test_a_long_log_takes_little_time(tmp_path: Path) -> None:
    noise = [f"[rank{i % 8}]: 2026-08-28 05:10:05,{i:03d} INFO device must be warm, step {i}" for i in range(1000)]
    block = "\n".join(noise)
    log = tmp_path / "log"
    log.write_text("\n".join([*([block] * 75), f"[rank1]: ValueError: {MESSAGE}", block]))
    assert log.stat().st_size > 5_000_000
    started = time.process_time()
    with log.open("rb") as stream:
        (finding,) = explain_file(stream).findings
    assert finding.line == 75_001
    assert time.process_time() - started < 2


@pytest.mark.parametrize("line", ["a" * 3_000_000, "must be on " * 300_000, "(" * 500_000, "[rank1]: " * 300_000])
def test_a_monstrous_line_does_not_stall_it(line: str) -> None:
    started = time.process_time()
    explain(f"{line} must be on dst's device\ncuda:0")
    assert time.process_time() - started < 2


# In a notebook.


@pytest.fixture
def shell() -> object:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    load_ipython_extension(shell)
    return shell


def test_the_magic_explains_the_last_exception(shell: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "last_value", raised_by(records()[f"{DEVICE}/src"]), raising=False)
    explanation = shell.run_line_magic("explain", "")  # type: ignore[attr-defined]
    (finding,) = explanation.findings
    assert finding.records == (f"{DEVICE}/src",)
    assert "odd one out: src on cuda:1" in repr(explanation)
    assert "seen" not in repr(explanation)
    assert "<table>" in explanation._repr_html_()


def test_the_magic_explains_a_message_a_file_and_a_cell(shell: object, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(MESSAGE)
    assert shell.run_line_magic("explain", MESSAGE).findings[0].id == DEVICE  # type: ignore[attr-defined]
    assert shell.run_line_magic("explain", str(tmp_path / "log")).findings[0].id == DEVICE  # type: ignore[attr-defined]
    assert shell.run_cell_magic("explain", "", f"ValueError: {MESSAGE}").findings[0].id == DEVICE  # type: ignore[attr-defined]


def test_the_magic_says_when_there_is_nothing(
    shell: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(sys, "last_value", raising=False)
    assert shell.run_line_magic("explain", "") is None  # type: ignore[attr-defined]
    assert "no exception" in capsys.readouterr().out


PLACES = {(spec(record.function).notebook, record.section) for record in records().values()}
PLACES |= {(entry.notebook, entry.section) for entry in FOREIGN}


@pytest.mark.parametrize(("stem", "section"), sorted(PLACES))
def test_links_lead_to_sections_that_are_there(stem: str, section: str) -> None:
    link = notebook_link(stem, section)
    assert link is not None, f"there is no notebook {stem}"
    assert link.rpartition("#")[2].lower() == section


def test_a_notebooks_link_keeps_the_headings_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [{"cell_type": "markdown", "source": ["# Title\n", "\n", "## What PyTorch says\n"]}]
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "07_lesson.ipynb").write_text(json.dumps({"cells": cells}))
    monkeypatch.setattr("helpers.explain._ROOT", tmp_path)
    assert notebook_link("lesson", "what-pytorch-says") == "notebooks/07_lesson.ipynb#What-PyTorch-says"
    assert notebook_link("lesson", "gone") == "notebooks/07_lesson.ipynb"
    assert notebook_link("absent", "gone") is None


def test_text_in_html_is_escaped() -> None:
    (finding,) = explain("Unexpected tensor ranks: dst.ndim=<b>1 src.ndim=5").findings
    assert "<b>1" in finding.message
    assert "<b>1" not in explain("Unexpected tensor ranks: dst.ndim=<b>1 src.ndim=5")._repr_html_()


@pytest.mark.parametrize(
    ("said", "id", "arguments"),
    [
        ("dst and src must be on the same device.", "mamba_scatter.state.device", {"src", "dst"}),
        ("ValueError: dst and src must be on the same device. dst.device=...", "mamba_scatter.state.device", {"src"}),
        ("kv-canary: … must be on out_verify_offsets_scratch's device …, got …", "kv_canary.plan.device", {"enable"}),
    ],
)
def test_a_message_without_its_values_is_recognised(said: str, id: str, arguments: set[str]) -> None:
    found = {finding.id: finding for finding in explain(f"a log\n{said}\n").findings}
    assert found[id].line == 2
    assert any(wanted in name for wanted in arguments for name in found[id].arguments)
    assert found[id].message in said.replace("...", "…")


@pytest.mark.parametrize("said", ["must be on the same device.", "dst and src must be", "RuntimeError: dst"])
def test_a_few_words_are_not_taken_for_a_message(said: str) -> None:
    assert explain(said).findings == ()
