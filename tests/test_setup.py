"""The set-up: pins and files agree with each other, and make does what it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ENVIRONMENT: dict[str, Any] = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
# A CUDA build of torch brings its own libraries; it pins them itself.
TORCH_PINS = ("nvidia-", "cuda-", "triton")


def pins() -> dict[str, Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert len({canonicalize_name(item.name) for item in found}) == len(found)
    return {canonicalize_name(item.name): item for item in found}


def wanted() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"]
    return [Requirement(line) for line in [*PROJECT["dependencies"], *chain(*extras.values())]]


def closure(requirements: list[Requirement]) -> Iterator[str]:
    """Names of everything that these need in this environment, themselves included."""
    seen: set[str] = set()
    waiting = list(requirements)
    while waiting:
        item = waiting.pop()
        name = canonicalize_name(item.name)
        if name in seen or (name.startswith(TORCH_PINS) and name != "triton"):
            continue
        seen.add(name)
        yield name
        for line in metadata.requires(name) or []:
            need = Requirement(line)
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in {"", *item.extras}):
                waiting.append(need)


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    # Tests may themselves run under make, whose settings must not reach the one that is tested.
    ours = ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "PYTHON", "VENV", "JOBS", "ARGS")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_every_pin_is_exact() -> None:
    for item in pins().values():
        assert re.fullmatch(r"==[^*,]+", str(item.specifier)), item
        assert not Version(str(item.specifier)[2:]).local, "a local version cannot be found on every machine"


def test_the_pins_fit_what_the_project_asks_for() -> None:
    for item in wanted():
        pin = pins()[canonicalize_name(item.name)]
        assert item.specifier.contains(str(pin.specifier)[2:]), f"{pin} is not {item}"


def test_everything_that_is_needed_is_pinned() -> None:
    try:
        needed = set(closure(wanted()))
    except metadata.PackageNotFoundError as missing:
        pytest.skip(f"this environment was not installed from pyproject.toml: it has no {missing}")
    assert needed - set(pins()) == set()


def test_the_build_is_pinned_too() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    for line in [*build, "pip"]:
        item = Requirement(line)
        assert item.specifier.contains(str(pins()[item.name].specifier)[2:])


def test_torch_and_triton_belong_together() -> None:
    assert str(pins()["torch"]) == "torch==2.13.0"
    assert str(pins()["triton"]) == "triton==3.7.1"


def test_the_conda_environment_installs_this_project_under_the_same_pins() -> None:
    plain = [item for item in ENVIRONMENT["dependencies"] if isinstance(item, str)]
    [section] = [item for item in ENVIRONMENT["dependencies"] if isinstance(item, dict)]
    # Nothing stands in two places: what is needed comes from pyproject.toml, versions from constraints.txt.
    assert [item.partition("=")[0] for item in plain] == ["python", "pip"]
    assert section == {"pip": ["-c constraints.txt", "-e .[test]"]}
    assert ENVIRONMENT["name"] == PROJECT["name"]
    assert "test" in PROJECT["optional-dependencies"]


def test_the_conda_environment_has_a_python_that_the_project_accepts() -> None:
    [python] = [item for item in ENVIRONMENT["dependencies"] if str(item).startswith("python=")]
    assert SpecifierSet(PROJECT["requires-python"]).contains(python.partition("=")[2] + ".0")


def test_the_interpreter_that_runs_this_is_one_the_project_accepts() -> None:
    assert SpecifierSet(PROJECT["requires-python"]).contains(".".join(map(str, sys.version_info[:3])))


def test_templates_are_part_of_the_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    package = ROOT / "helpers" / "report"
    listed = {path for pattern in settings["package-data"]["helpers.report"] for path in package.glob(pattern)}
    assert {path for path in (package / "templates").rglob("*") if path.is_file()} <= listed


def test_no_registry_is_named() -> None:
    for name in ("pyproject.toml", "constraints.txt", "environment.yml", "Makefile", ".ci/run"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not re.search(r"https?://|index-url|find-links", text), name


@pytest.mark.parametrize("there", [True, False])
def test_ci_installs_a_browser_where_there_is_none_and_runs_the_tests(tmp_path: Path, there: bool) -> None:
    for name in ("make", "apt-get", *(["chromium"] if there else [])):
        command = tmp_path / name
        command.write_text(
            f'#!/bin/sh\necho "{name} $* ($DEVICE_GUARDS_REQUIRE)" >> "{tmp_path}/log"\n', encoding="utf-8"
        )
        command.chmod(0o755)
    for name in ("bash", "dirname"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    done = subprocess.run([str(ROOT / ".ci" / "run")], env={"PATH": str(tmp_path)}, check=False)
    installing = ["apt-get update -qq ()", "apt-get install -qq -y --no-install-recommends chromium ()"]
    assert done.returncode == 0
    assert (tmp_path / "log").read_text(encoding="utf-8").splitlines() == [
        *([] if there else installing),
        "make test (browser)",
    ]


def test_the_licence_is_the_one_that_is_declared() -> None:
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert PROJECT["license"] == "MIT"
    assert licence.startswith("MIT License")
    assert "The device-guards authors" in licence


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make on this machine")
class TestMake:
    """The Makefile, in a copy without the network: a python that only writes down what it is asked."""

    TARGETS = ("clean", "clean-venv", "doctor", "explain", "help", "lab", "lint", "report", "slides", "test")

    @pytest.fixture
    def copy(self, tmp_path: Path) -> Path:
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, tmp_path / name)
        self.interpreter(tmp_path / "python", code=0)
        return tmp_path

    def interpreter(self, path: Path, code: int) -> None:
        """A stand-in that logs its arguments, makes "environments" of copies of itself, and ends with a code."""
        path.write_text(
            "#!/bin/sh\n"
            f'echo "$@" >> "{path.parent}/log"\n'
            'if [ "$1 $2" = "-m venv" ]; then\n'
            '  mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; touch "$3/bin/pip" "$3/pyvenv.cfg"\n'
            '  chmod +x "$3/bin/pip"\n'
            "fi\n"
            f"exit {code}\n",
            encoding="utf-8",
        )
        path.chmod(0o755)

    def asked(self, copy: Path) -> list[str]:
        """What the interpreter was asked so far, without the question for its version."""
        lines = (copy / "log").read_text(encoding="utf-8").splitlines()
        (copy / "log").write_text("", encoding="utf-8")
        return [line for line in lines if not line.startswith("-c ")]

    def test_help_is_the_default_and_names_every_target(self) -> None:
        shown = run("make")
        assert shown.returncode == 0
        assert shown.stdout == run("make", "help").stdout
        assert sorted(re.findall(r"^ +make ([a-z-]+)", shown.stdout, re.MULTILINE)) == list(self.TARGETS)

    @pytest.mark.parametrize(
        ("target", "commands"),
        [
            ("report", ["-m helpers.report"]),
            ("test", ["-m pytest -n 2 --dist loadscope"]),
            ("lab", ["-m jupyterlab notebooks/00_start_here.ipynb" + (" --allow-root" if os.getuid() == 0 else "")]),
            ("slides", ["-m helpers.report slides"]),
            ("explain", ["-m helpers.explain"]),
            ("doctor", ["-m helpers.doctor"]),
            ("lint", ["-m ruff check .", "-m ruff format --check .", "-m mypy"]),
        ],
    )
    def test_a_target_installs_once_and_then_only_runs(self, copy: Path, target: str, commands: list[str]) -> None:
        assert run("make", target, "PYTHON=./python", cwd=copy).returncode == 0
        first = self.asked(copy)
        assert first[0] == "-m venv .venv"
        assert first[1].endswith("--constraint constraints.txt pip")
        assert first[2].endswith(
            "--constraint constraints.txt --build-constraint constraints.txt "
            "--editable .[test,lint,browser,cluster,slides]"
        )
        assert first[3:] == commands
        assert run("make", target, "PYTHON=./python", cwd=copy).returncode == 0
        assert self.asked(copy) == commands

    @pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
    def test_a_changed_file_installs_again_into_the_same_environment(self, copy: Path, changed: str) -> None:
        run("make", "doctor", "PYTHON=./python", cwd=copy)
        self.asked(copy)
        ready = (copy / ".venv" / ".ready").stat().st_mtime
        os.utime(copy / changed, (ready + 5, ready + 5))
        run("make", "doctor", "PYTHON=./python", cwd=copy)
        assert [line.split()[1] for line in self.asked(copy)] == ["pip", "pip", "helpers.doctor"]

    def test_an_interrupted_installation_is_done_again(self, copy: Path) -> None:
        run("make", "doctor", "PYTHON=./python", cwd=copy)
        (copy / ".venv" / ".ready").unlink()
        self.asked(copy)
        run("make", "doctor", "PYTHON=./python", cwd=copy)
        assert [line.split()[1] for line in self.asked(copy)] == ["pip", "pip", "helpers.doctor"]

    def test_arguments_are_handed_on(self, copy: Path) -> None:
        run("make", "report", "PYTHON=./python", "ARGS=--jobs 1 mamba_scatter", cwd=copy)
        assert self.asked(copy)[-1] == "-m helpers.report --jobs 1 mamba_scatter"

    def test_a_log_to_explain_is_named(self, copy: Path) -> None:
        run("make", "explain", "PYTHON=./python", "FILE=log.txt", cwd=copy)
        assert self.asked(copy)[-1] == "-m helpers.explain log.txt"

    def test_without_an_environment_the_interpreter_is_used_as_it_is(self, copy: Path) -> None:
        assert run("make", "report", "PYTHON=./python", "VENV=", cwd=copy).returncode == 0
        assert self.asked(copy) == ["-m helpers.report"]
        assert not (copy / ".venv").exists()

    def test_an_interpreter_that_is_too_old_is_refused_in_words(self, copy: Path) -> None:
        self.interpreter(copy / "old", code=1)
        done = run("make", "report", "PYTHON=./old", cwd=copy)
        assert done.returncode != 0
        assert "needs Python 3.11 or newer, and PYTHON=./old is not that" in done.stderr
        assert not (copy / ".venv").exists()

    def test_cleaning_keeps_the_environment_and_the_sources(self, copy: Path) -> None:
        run("make", "doctor", "PYTHON=./python", cwd=copy)
        for name in ("report/index.html", "a/__pycache__/a.pyc", ".venv/lib/__pycache__/b.pyc", "a/a.py"):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).touch()
        assert run("make", "clean", cwd=copy).returncode == 0
        left = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
        assert {"a/a.py", ".venv/.ready", ".venv/lib/__pycache__/b.pyc", "Makefile"} <= left
        assert not {"report/index.html", "a/__pycache__/a.pyc"} & left

    def test_only_an_environment_is_removed(self, copy: Path) -> None:
        run("make", "doctor", "PYTHON=./python", cwd=copy)
        assert run("make", "clean-venv", cwd=copy).returncode == 0
        assert not (copy / ".venv").exists()
        (copy / "precious").mkdir()
        assert run("make", "clean-venv", "VENV=precious", cwd=copy).returncode != 0
        assert run("make", "clean-venv", "VENV=", cwd=copy).returncode == 0
        assert (copy / "precious").exists()
