"""Which parameter of which kernel: read from the kernels' sources, without importing them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_KERNELS = Path(__file__).resolve().parents[2] / "kernels"


@dataclass(frozen=True)
class Kernel:
    """The signature of a Triton kernel.

    Attributes:
        name: of the function.
        parameters: all of them, in order, constexpr ones included.
        pointers: those that take a tensor.
    """

    name: str
    parameters: tuple[str, ...]
    pointers: tuple[str, ...]


@dataclass(frozen=True)
class Launch:
    """A place in a kernel's folder from which it is launched.

    Attributes:
        folder: the kernel's folder.
        function: the function around the launch.
        kernel: name of the kernel.
        arguments: source of what is passed for each parameter, as far as it can be counted.
    """

    folder: str
    function: str
    kernel: str
    arguments: tuple[str, ...]


@cache
def kernels() -> dict[str, Kernel]:
    """Every kernel that is launched from Python, by name."""
    trees = [_parse(path) for path in sorted(_KERNELS.glob("*/*.py"))]
    return {kernel.name: kernel for tree in trees for kernel in _jit_functions(tree)}


@cache
def launches() -> tuple[Launch, ...]:
    """Every place that launches one of them."""
    found = []
    for path in sorted(_KERNELS.glob("*/*.py")):
        for function in _functions(_parse(path)):
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and (launched := _launched(call)):
                    name, arguments = launched
                    found.append(Launch(path.parent.name, function.name, name, _counted(arguments)))
    return tuple(found)


def launched_from(frames: Sequence[tuple[str, str]]) -> list[Launch]:
    """The launches that stand in the innermost function of a traceback that has any.

    A function further out may launch one kernel and call, instead, the function that launches another.

    Args:
        frames: path and function of each frame, the innermost last.
    """
    for path, function in reversed(frames):
        folder = Path(path.replace("\\", "/")).parent.name
        found = [launch for launch in launches() if (launch.folder, launch.function) == (folder, function)]
        if found:
            return found
    return []


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _jit_functions(tree: ast.Module) -> Iterator[Kernel]:
    for node in _functions(tree):
        # A leading underscore marks what only other kernels call.
        if not node.name.startswith("_") and any("jit" in ast.unparse(decorator) for decorator in node.decorator_list):
            names = tuple(argument.arg for argument in node.args.args)
            yield Kernel(node.name, names, tuple(name for name in names if name.endswith("_ptr")))


def _launched(call: ast.Call) -> tuple[str, list[ast.expr]] | None:
    """Name of the kernel and its arguments, if a call is ``launch(kernel, grid, ...)`` or ``kernel[grid](...)``."""
    if isinstance(call.func, ast.Subscript) and isinstance(call.func.value, ast.Name):
        name, arguments = call.func.value.id, call.args
    elif isinstance(call.func, ast.Name) and call.func.id == "launch" and call.args:
        name, arguments = ast.unparse(call.args[0]), call.args[2:]
    else:
        return None
    return (name, arguments) if name in kernels() else None


def _counted(arguments: list[ast.expr]) -> tuple[str, ...]:
    counted = []
    for argument in arguments:
        if isinstance(argument, ast.Starred):
            break
        counted.append(ast.unparse(argument))
    return tuple(counted)
