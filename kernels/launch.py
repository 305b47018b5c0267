"""How a checked call reaches a device.

A kernel is launched where its tensors are: the current device is switched for the duration of the launch and put
back afterwards, and the launch goes to that device's current stream. CPU tensors go through Triton's interpreter.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import triton
from triton.runtime import interpreter as triton_interpreter
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

try:
    from triton.language.extra.cuda import gdc_wait
except ImportError:
    gdc_wait = None  # A Triton built for other GPUs alone.

from kernels.direct import direct_launch
from kernels.guards import compute_capability, interpreter, interpreting

__all__ = [
    "Launched",
    "early_start",
    "gdc_wait",
    "interpreter",
    "interpreting",
    "is_interpreted",
    "launch",
    "needs_dispatch",
    "run_eagerly",
]

# The interpreter patches module-level state of Triton, so only one interpreted launch runs at a time. A kernel must not
# be compiled in another thread meanwhile.
_interpreter_lock = threading.RLock()
_interpreted: dict[int, tuple[Any, InterpretedFunction]] = {}
# What a launch can take as it is, found without looking any further.
_PLAIN = {torch.Tensor, torch.nn.Parameter, type(None)}
# How a compiled kernel is called below its public face has been the same in these releases.
_LAUNCHER_IS_KNOWN = triton.__version__.startswith(("3.6.", "3.7."))
# Looked up once: every call of a kernel asks them. A PyTorch without CUDA lacks the last two, and never gets there.
_dispatch_modes, _transforms = torch._C._len_torch_dispatch_stack, torch._C._functorch.peek_interpreter_stack
_current_device: Any = getattr(torch._C, "_cuda_getDevice", None)
_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, device: torch.device, **options: Any) -> Launched | None:
    """Run a Triton kernel on the device of its tensors.

    Args:
        kernel: a ``@triton.jit`` function whose constexpr parameters come last.
        grid: number of programs in up to three dimensions. With a zero in it, nothing is launched.
        *args: the kernel's arguments, in the order of its signature.
        device: where the tensors are: a GPU, or the CPU for the interpreter.
        **options: every constexpr argument, and launch options (``num_warps``, ``num_stages``).

    Returns:
        What is needed to launch the same again, or None if that would be no shorter way.
    """
    if 0 in grid:
        return None
    if is_interpreted(device):
        _interpret(kernel, grid, *args, **options)
        return None
    if device.index == torch.cuda.current_device():
        return _launch(kernel, grid, args, device.index, options)
    with torch.cuda.device(device):
        return _launch(kernel, grid, args, device.index, options)


def is_interpreted(device: torch.device) -> bool:
    """Whether a launch on this device goes through Triton's interpreter."""
    return device.type == "cpu"


def early_start(device: torch.device) -> dict[str, bool]:
    """Options for a kernel that may start while the one before it on the stream is still ending.

    The GPU then places its programs early, which hides most of the time that a launch takes; they wait for the kernel
    before with ``gdc_wait`` before they touch memory, where the constexpr EARLY is set. From sm_90 on.
    """
    capability = compute_capability(device)
    early = gdc_wait is not None and capability is not None and capability[0] >= 9
    return {"EARLY": True, "launch_pdl": True} if early else {"EARLY": False}


def needs_dispatch(*tensors: torch.Tensor | None) -> bool:
    """Whether a call has to go through PyTorch's dispatcher as a custom op rather than straight to the launch.

    True while torch.compile traces, under a dispatch mode (FakeTensorMode, make_fx, a FLOP counter), within a transform
    of torch.func, and for tensor subclasses that dispatch (FakeTensor, functional tensors). Plain eager calls skip the
    dispatcher, which costs several microseconds a call.
    """
    if torch.compiler.is_compiling() or not run_eagerly():
        return True
    return not _PLAIN.issuperset(map(type, tensors)) and any(map(_dispatches, tensors))


def run_eagerly() -> bool:
    """Whether calls run as they are, outside any dispatch mode and any transform of torch.func."""
    return _dispatch_modes() == 0 and _transforms() is None


def _dispatches(tensor: torch.Tensor | None) -> bool:
    """Whether the dispatcher does something else with this tensor than with a plain one.

    A subclass that only adds attributes (a Parameter that knows how to load itself) reaches the op's implementation
    as it is: there it has to be launched, since dispatching it once more would never end.
    """
    return tensor is not None and type(tensor).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl


class Launched:
    """A launch that was made, from which others can be made at other addresses.

    Attributes:
        pointers: addresses of the tensors among its arguments, in their order.
    """

    __slots__ = ("_arguments", "_compiled", "_direct", "_grid", "_index", "_rest", "pointers")

    def __init__(self, compiled: Any, grid: tuple[int, int, int], arguments: tuple[Any, ...], index: int) -> None:
        """Note what was launched.

        Args:
            compiled: Triton's compiled kernel.
            grid: number of programs.
            arguments: one for each of the kernel's parameters, constexprs included.
            index: of the device.
        """
        tensors = [place for place, arg in enumerate(arguments) if isinstance(arg, torch.Tensor)]
        others = [place for place in range(len(arguments)) if place not in tensors]
        order = sorted(range(len(arguments)), key=[*tensors, *others].__getitem__)
        self.pointers: list[int] = [arguments[place].data_ptr() for place in tensors]
        # The arguments are all of these, picked out of the addresses followed by the rest.
        self._arguments: Callable[[tuple[Any, ...]], tuple[Any, ...]] = operator.itemgetter(*order)
        self._rest = tuple(arguments[place] for place in others)
        self._compiled, self._grid, self._index = compiled, grid, index
        # How to launch without Triton. Whether there is such a way is found out when it is first wanted.
        self._direct: Callable[[list[int], int], bool] | None = None

    def again(self, pointers: list[int]) -> None:
        """Launch the same with other addresses, on the device's current stream.

        Triton would parse its options, bind the arguments and ask the driver about every pointer at every call. All
        that is known here, and guards stand where Triton asks.

        Args:
            pointers: as many as before, aligned as before.
        """
        # Where the driver refuses, Triton's launcher finds the way (a thread without a context) or the words.
        if self._index != _current_device():
            with torch.cuda.device(self._index):
                self.again(pointers)
        elif _hooks() or not (self._direct or self._find_direct())(pointers, _current_stream(self._index)):
            self._through_triton(pointers)

    def _find_direct(self) -> Callable[[list[int], int], bool]:
        arguments = self._arguments((*[None] * len(self.pointers), *self._rest))
        found = direct_launch(self._compiled, self._grid, arguments) if _LAUNCHER_IS_KNOWN else None
        self._direct = _no_direct if found is None else found
        return self._direct

    def _through_triton(self, pointers: list[int]) -> None:
        compiled, arguments = self._compiled, self._arguments((*pointers, *self._rest))
        stream = _current_stream(self._index)
        if _LAUNCHER_IS_KNOWN and not _hooks():
            compiled.run(*self._grid, stream, compiled.function, compiled.packed_metadata, None, None, None, *arguments)
        else:
            compiled[self._grid](*arguments, stream=stream)


def _no_direct(pointers: list[int], stream: int) -> bool:
    return False


def _hooks() -> bool:
    """Whether a profiler wants to hear of launches."""
    enter, leave = triton.knobs.runtime.launch_enter_hook, triton.knobs.runtime.launch_exit_hook
    # A chain of hooks, which may be empty; or whatever someone has put in its place.
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


def _launch(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], index: int, options: Any) -> Launched | None:
    compiled = kernel[grid](*args, **options)
    if not isinstance(kernel, JITFunction) or torch.version.hip is not None:
        # TRITON_INTERPRET has made it an interpreted function; or Triton specialises on more than is known here.
        return None
    constants = tuple(options[p.name] for p in kernel.params if p.is_constexpr)
    if len(args) + len(constants) != len(kernel.params) or len(kernel.params) < 2:
        # Some arguments came by keyword, whose place only Triton knows; or there is nothing to pick from.
        return None
    x, y, z = (*grid, 1, 1)[:3]
    return Launched(compiled, (x, y, z), (*args, *constants), index)


def _interpret(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    with _interpreter_lock, _jit_calls_interpreted():
        _as_interpreted(kernel)[grid](*args, **options)


def _as_interpreted(kernel: Any) -> InterpretedFunction:
    # Keyed by identity: hashing a JITFunction parses its source, which fails while the language is patched.
    if id(kernel) not in _interpreted:
        _interpreted[id(kernel)] = (kernel, InterpretedFunction(kernel.fn))
    return _interpreted[id(kernel)][1]


@contextmanager
def _jit_calls_interpreted() -> Iterator[None]:
    """Let ``@triton.jit`` functions, Triton's own included, be called from an interpreted kernel.

    Triton decides at decoration time whether a function is compiled or interpreted. Kernels here are decorated for
    compilation, so that one process can do both; while one is interpreted, the functions it calls are too.
    """
    compiled_call, patch_tensor = JITFunction.__call__, triton_interpreter._patch_lang_tensor

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        return _as_interpreted(function).rewrite()(*args, **kwargs)

    def patch_tensor_and_index(tensor: Any, scope: Any) -> None:
        # Triton 3.6 converts the bound of a loop in a way that NumPy 2.4 refuses; 3.7 does it like this.
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    triton_interpreter._patch_lang_tensor = patch_tensor_and_index
    # A launch patches the language as far as the kernel's own module refers to it. Triton's library functions refer
    # to more of it, and a patch made when one of them is called would never be undone; so it is made here, once.
    library = triton_interpreter._patch_lang(triton.language.zeros.fn)
    JITFunction.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        JITFunction.__call__ = compiled_call  # type: ignore[method-assign]
        triton_interpreter._patch_lang_tensor = patch_tensor
        library.restore()
