"""Choose device, dtype and layout for each argument of a kernel, and see at once what its guards say.

The real guards judge the call, on stand-ins: nothing is launched, so every combination can be tried on any machine.
:func:`judge` is the whole of it; :func:`playground` puts widgets in front, where there is something to show them.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from IPython.display import display
from tabulate import tabulate

from helpers import topology
from helpers.atlas import records, spec
from helpers.calls import Call
from helpers.placement import draw, placement
from helpers.plots import mime_bundle
from helpers.reproduce import refusal_text
from kernels.guards import GuardError

DEVICES = ("cuda:0", "cuda:1", "cpu")
DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "int64", "int32", "bool")
LAYOUTS = ("as it should be", "last two dims transposed", "every second element")


@dataclass(frozen=True)
class Choice:
    """What one tensor of the call is to be. An empty dtype keeps the right one.

    Attributes:
        device: one of ``DEVICES``.
        dtype: one of ``DTYPES``, or empty.
        layout: one of ``LAYOUTS``.
    """

    device: str = DEVICES[0]
    dtype: str = ""
    layout: str = LAYOUTS[0]


@dataclass(frozen=True)
class Verdict:
    """What the guards say to a call.

    Attributes:
        guard: id of the guard that fired; empty if the call was accepted.
        text: its message and notes, or that there is nothing to complain about.
        call: the call that was judged, all stand-ins.
    """

    guard: str
    text: str
    call: Call


def functions() -> list[str]:
    """The functions to play with: those that judge where their tensors are."""
    return list(dict.fromkeys(entry.function for entry in records().values() if entry.error == "DeviceError"))


def arguments(function: str) -> list[str]:
    """Names of the tensors that one can play with, in the order of the signature."""
    return list(Call(spec(function), spec(function).sample(topology.CPU, 0)).tensors)


def judge(function: str, choices: Mapping[str, Choice] | None = None) -> Verdict:
    """Make a call of stand-ins as chosen and let the real guards judge it.

    Args:
        function: a public function of ``kernels``.
        choices: by argument; arguments that are left out are as they should be, on cuda:0.

    Raises:
        KeyError: when the function, or an argument in the choices, does not exist.
    """
    call = Call(spec(function), spec(function).sample(topology.CPU, 0))
    unknown = set(choices or {}) - set(call.tensors)
    if unknown:
        raise KeyError(f"{function} has no tensor {', '.join(sorted(unknown))}; it has {', '.join(call.tensors)}")
    for name, tensor in call.tensors.items():
        call[name] = _stand_in(tensor, (choices or {}).get(name, Choice()))
    try:
        call.run()
    except GuardError as error:
        return Verdict(error.guard, refusal_text(error), call)
    return Verdict("", "accepted: no guard has anything to say against this call", call)


def _stand_in(tensor: torch.Tensor, choice: Choice) -> torch.Tensor:
    dtype = getattr(torch, choice.dtype) if choice.dtype else tensor.dtype
    shape, stride = tuple(tensor.shape), list(tensor.stride())
    if choice.layout == LAYOUTS[1] and len(shape) > 1:
        turned = torch.empty((*shape[:-2], shape[-1], shape[-2]), device="meta").transpose(-1, -2)
        stride = list(turned.stride())
    elif choice.layout == LAYOUTS[2]:
        stride = [2 * step for step in stride]
    return topology.stand_in(shape, tuple(stride), dtype, torch.device(choice.device))


def examples(function: str) -> str:
    """A few choices and what comes of them, as text: what is left of the playground without widgets."""
    rows = []
    for name, tensor in judge(function).call.tensors.items():
        # A list has nothing to transpose, but it can have gaps.
        layout = ("transposed", LAYOUTS[1]) if tensor.ndim > 1 else ("strided", LAYOUTS[2])
        for what, choice in (("on the CPU", Choice(device="cpu")), (layout[0], Choice(layout=layout[1]))):
            said = judge(function, {name: choice}).text.splitlines()[0]
            rows.append((name, what, said if len(said) <= 80 else f"{said[:79]}…"))
    return tabulate(rows, headers=("argument", "is", "the guards say"), tablefmt="simple")


def playground(function: str = "fused_mamba_state_scatter_with_mask") -> None:
    """Show the playground: in JupyterLab as widgets, elsewhere as a static table of examples.

    Args:
        function: the one to begin with.
    """
    static = {"text/plain": examples(function), "text/html": f"<pre>{html.escape(examples(function))}</pre>"}
    try:
        import ipywidgets
    except ImportError:
        display(static, raw=True)
        return
    # A front end that knows widgets takes those; any other, and a page made from the notebook, takes the table.
    display({**_Playground(ipywidgets, function).box._repr_mimebundle_(), **static}, raw=True)


class _Playground:
    """The widgets and what connects them."""

    def __init__(self, widgets: Any, function: str) -> None:
        self.widgets = widgets
        self.choices: dict[str, Choice] = {}
        self.rows = widgets.VBox()
        self.answer = widgets.HTML()
        self.picker = widgets.Dropdown(options=functions(), value=function, description="function")
        self.picker.layout.width = "auto"
        self.picker.observe(lambda change: self.start(), names="value")
        self.box = widgets.VBox([self.picker, self.rows, self.answer])
        self.start()

    def start(self) -> None:
        """Begin with a call that is as it should be."""
        names = arguments(self.picker.value)
        self.choices = {name: Choice() for name in names}
        self.rows.children = [self.row(name) for name in names]
        self.update()

    def row(self, name: str) -> Any:
        """Three menus for one argument."""
        label = self.widgets.Label(name, layout=self.widgets.Layout(width="16em"))
        menus = [
            self.menu(name, "device", DEVICES),
            self.menu(name, "dtype", ("", *DTYPES)),
            self.menu(name, "layout", LAYOUTS),
        ]
        return self.widgets.HBox([label, *menus])

    def menu(self, name: str, field: str, options: tuple[str, ...]) -> Any:
        """One menu, which changes one field of one argument's choice."""
        labelled = [(option or "right dtype", option) for option in options]
        menu = self.widgets.Dropdown(options=labelled, layout=self.widgets.Layout(width="13em"))

        def changed(change: Any) -> None:
            self.choices[name] = replace(self.choices[name], **{field: change["new"]})
            self.update()

        menu.observe(changed, names="value")
        return menu

    def update(self) -> None:
        """Judge the call and show verdict and picture."""
        verdict = judge(self.picker.value, self.choices)
        picture = draw(placement(verdict.call))
        figure = mime_bundle(picture.figure, picture.alt)["text/html"]
        self.answer.value = f"<pre>{html.escape(verdict.text)}</pre>{figure}"
