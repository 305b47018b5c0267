"""Reports side by side: nothing is called better than it was seen, and what is no report is refused."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from helpers.report import __main__ as command
from helpers.report import merge, output

H200, LAPTOP = "1 x NVIDIA H200; cuda:1 is a stand-in", "no GPU"


def record(name: str, verdict: str = "reproduced", **changes: Any) -> dict[str, Any]:
    seen = verdict == "reproduced"
    return {
        "id": f"kernel.{name}",
        "kernel": "kernel",
        "function": "scatter",
        "error": "DeviceError",
        "message": f"{name} <must> be elsewhere",
        "verdict": verdict,
        "refusal": "stand-in" if seen else None,
        "fix": "interpreter" if seen else None,
        "relative_error": 0.0 if seen else None,
        "link": f"lesson.html#{name}",
        **changes,
    }


def report(
    folder: Path, *records: dict[str, Any], device: str = LAPTOP, date: str = "2026-01-01", **changes: Any
) -> Path:
    """A report as far as merging needs it."""
    provenance = {"device": device, "torch": "2.13.0", "triton": "3.7.1", "commit": "0123456789abcdef", "date": date}
    counts = {"refused_real": 0, "refused_stand_in": len(records), "not_run": 0}
    content = {"schema": 1, "passed": True, "provenance": provenance, "notebooks": [], "counts": counts}
    folder.mkdir(parents=True)
    output.write_json(content | {"records": list(records)} | changes, folder / "summary.json")
    return folder


def merged(tmp_path: Path, *folders: Path) -> tuple[dict[str, Any], str]:
    """Summary and page, by the command itself."""
    out = tmp_path / "reports"
    assert command.main(["merge", *map(str, folders), "--out", str(out)]) == 0
    content = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    return content, (out / "index.html").read_text(encoding="utf-8")


def test_the_best_evidence_is_kept_and_each_report_keeps_its_own(tmp_path: Path) -> None:
    strong = record("a", refusal="real", fix="real", relative_error=1e-7)
    one = report(tmp_path / "reports" / "h200", strong, record("b"), record("c", "not run"), device=H200)
    two = report(tmp_path / "reports" / "cpu", record("a"), record("b", "not run"), record("c", "not run"))
    content, _ = merged(tmp_path, one, two)
    assert [item["name"] for item in content["reports"]] == ["h200", "cpu"]
    assert {item["id"]: item["best"] for item in content["records"]} == {
        "kernel.a": "real",
        "kernel.b": "stand-in",
        "kernel.c": "not run",
    }
    assert [cell["refusal"] for cell in content["records"][0]["seen"]] == ["real", "stand-in"]
    assert content["counts"] == {"reports": 2, "records": 3, "real": 1, "stand_in": 1, "not_run": 1, "disagree": 0}


def test_one_report_that_disagrees_spoils_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = report(tmp_path / "a", record("a", refusal="real", fix="real"))
    two = report(tmp_path / "b", record("a", "disagrees", refusal=None))
    content, page = merged(tmp_path, one, two)
    assert content["records"][0]["best"] == "disagrees"
    assert "DISAGREES</span>" in page
    assert "1 DISAGREE." in capsys.readouterr().out


def test_the_same_hardware_twice_is_shown_twice_and_the_same_report_once(tmp_path: Path) -> None:
    one, two = (report(tmp_path / "reports" / name, record("a"), device=H200) for name in ("monday", "tuesday"))
    content, page = merged(tmp_path, one, two, tmp_path / "reports" / ".." / "reports" / "monday")
    assert [item["name"] for item in content["reports"]] == ["monday", "tuesday"]
    assert [item["provenance"]["device"] for item in content["reports"]] == [H200, H200]
    assert page.count(f'class="quiet">{H200}') == 2


def test_a_record_that_a_report_does_not_know_is_not_one_that_was_not_run(tmp_path: Path) -> None:
    one, two = report(tmp_path / "old", record("a")), report(tmp_path / "new", record("a"), record("b"))
    content, page = merged(tmp_path, one, two)
    assert content["records"][1]["seen"][0] is None
    assert page.count("unknown to it") == 1
    assert "NOT RUN" not in page


def test_the_latest_message_counts_and_another_one_is_pointed_out(tmp_path: Path) -> None:
    new = report(tmp_path / "new", record("a"), date="2026-02-01")
    old = report(tmp_path / "old", record("a", message="as it was"))
    for order in ((old, new), (new, old)):
        content, page = merged(tmp_path, *order)
        [row] = content["records"]
        assert row["message"] == "a <must> be elsewhere"
        assert {cell["message"] for cell in row["seen"]} == {None, "as it was"}
        assert "other message:</span> <code>as it was</code>" in page
        assert "a &lt;must&gt; be elsewhere" in page


class Links(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src"):
                (self.links if tag == "a" else self.fetched).append(str(value))


def test_links_lead_into_the_reports_wherever_they_are(tmp_path: Path) -> None:
    inside = report(tmp_path / "reports" / "h200", record("a"))
    outside = report(tmp_path / "elsewhere" / "report", record("a", link=None))
    _, page = merged(tmp_path, inside, outside)
    found = Links(page)
    assert set(found.links) == {
        "h200/index.html",
        "h200/lesson.html#a",
        "../elsewhere/report/index.html",
        "summary.json",
    }
    assert found.fetched == []
    assert not re.search(r"https?:|@import|url\(", page)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "holds no report: summary.json cannot be read (No such file or directory)"),
        ("{", "summary.json is not JSON"),
        ("[]", "is not the summary of a report"),
        ("{}", "is not the summary of a report"),
        ('{"schema": 2}', "has schema 2; this version reads 1"),
        ('{"schema": 1, "reports": []}', "is itself merged; name the reports that it was made of"),
        ('{"schema": 1}', "lacks passed, provenance, notebooks, records, counts"),
    ],
)
def test_what_is_no_report_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, complaint: str
) -> None:
    good, bad, out = report(tmp_path / "good", record("a")), tmp_path / "bad", tmp_path / "out"
    bad.mkdir()
    if content is not None:
        (bad / "summary.json").write_text(content, encoding="utf-8")
    assert command.main(["merge", str(good), str(bad), "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert str(bad) in said
    assert not out.exists()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [({"records": [{"id": "a"}]}, "lacks error, fix, function"), ({"provenance": {}}, "lacks commit, date, device")],
)
def test_what_is_missing_is_named(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(merge.MergeError, match=complaint):
        merge.read(report(tmp_path / "a", record("a"), **changes))


def test_no_report_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = report(tmp_path / "a", record("a"))
    before = (folder / "summary.json").read_bytes()
    assert command.main(["merge", str(folder), "--out", str(tmp_path / "b" / ".." / "a")]) == 2
    assert "would be overwritten" in capsys.readouterr().err
    assert (folder / "summary.json").read_bytes() == before


def test_what_the_report_command_writes_can_be_merged(tmp_path: Path) -> None:
    from dataclasses import asdict

    from helpers.report import evidence, machine

    seen = evidence.verdicts([])
    made = output.Report(machine.provenance(), [], [], seen)
    output.write(made, tmp_path / "made")
    content, _ = merged(tmp_path, tmp_path / "made")
    assert content["reports"][0]["provenance"]["device"] == asdict(made.provenance)["device"]
    assert content["counts"]["not_run"] == len(seen) > 0
