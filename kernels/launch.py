"""How a checked call reaches a device.

A kernel is launched where its tensors are: the current device is switched for the duration of the launch and put
back afterwards, and the launch goes to that device's current stream. CPU tensors go through Triton's interpreter.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import triton
from triton.runtime import interpreter as triton_interpreter
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from kernels.guards import interpreter, interpreting

__all__ = ["interpreter", "interpreting", "is_interpreted", "launch", "needs_dispatch"]

# The interpreter patches module-level state of Triton, so only one interpreted launch runs at a time. A kernel must not
# be compiled in another thread meanwhile.
_interpreter_lock = threading.RLock()
_interpreted: dict[int, tuple[Any, InterpretedFunction]] = {}
# What a launch can take as it is, found without looking any further.
_PLAIN = {torch.Tensor, torch.nn.Parameter, type(None)}
_compiled: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...], Any]] = {}


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, device: torch.device, **options: Any) -> None:
    """Run a Triton kernel on the device of its tensors.

    Args:
        kernel: a ``@triton.jit`` function whose constexpr parameters come last.
        grid: number of programs in up to three dimensions. With a zero in it, nothing is launched.
        *args: the kernel's arguments, in the order of its signature.
        device: where the tensors are: a GPU, or the CPU for the interpreter.
        **options: every constexpr argument, and launch options (``num_warps``, ``num_stages``).
    """
    if 0 in grid:
        return
    if is_interpreted(device):
        _interpret(kernel, grid, *args, **options)
    elif device.index == torch.cuda.current_device():
        _launch_compiled(kernel, grid, args, device.index, options)
    else:
        with torch.cuda.device(device):
            _launch_compiled(kernel, grid, args, device.index, options)


def is_interpreted(device: torch.device) -> bool:
    """Whether a launch on this device goes through Triton's interpreter."""
    return device.type == "cpu"


def needs_dispatch(*tensors: torch.Tensor | None) -> bool:
    """Whether a call has to go through PyTorch's dispatcher as a custom op rather than straight to the launch.

    True while torch.compile traces, under a dispatch mode (FakeTensorMode, make_fx, a FLOP counter), within a transform
    of torch.func, and for tensor subclasses that dispatch (FakeTensor, functional tensors). Plain eager calls skip the
    dispatcher, which costs several microseconds a call.
    """
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0:
        return True
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    return not _PLAIN.issuperset(map(type, tensors)) and any(map(_dispatches, tensors))


def _dispatches(tensor: torch.Tensor | None) -> bool:
    """Whether the dispatcher does something else with this tensor than with a plain one.

    A subclass that only adds attributes (a Parameter that knows how to load itself) reaches the op's implementation
    as it is: there it has to be launched, since dispatching it once more would never end.
    """
    return tensor is not None and type(tensor).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl


def _launch_compiled(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], index: int, options: Any) -> None:
    """Launch through Triton the first time a signature is seen, and from then on straight through its compiled form.

    Triton parses its options and binds the arguments at every call. Once a signature is known, all that has to be found
    out is which signature a call has.
    """
    if not isinstance(kernel, JITFunction) or torch.version.hip is not None:
        # TRITON_INTERPRET has made it an interpreted function; or Triton specialises on more than is known here.
        kernel[grid](*args, **options)
        return
    key = (id(kernel), index, *map(_trait, args), *options.values())
    found = _compiled.get(key)
    if found is None:
        compiled = kernel[grid](*args, **options)
        if len(args) != sum(not p.is_constexpr for p in kernel.params):
            # Some arguments came by keyword, whose place only Triton knows.
            return
        constants = tuple(options[p.name] for p in kernel.params if p.is_constexpr)
        # The kernel is kept as well, so that its id is not given to another one.
        _compiled[key] = (compiled, constants, kernel)
    else:
        compiled, constants, _ = found
        compiled[(*grid, 1, 1)[:3]](*args, *constants, stream=torch._C._cuda_getCurrentRawStream(index))


def _trait(arg: Any) -> Any:
    """What Triton compiles differently for: dtype and alignment of a pointer; one, multiple of 16, width of an int."""
    if isinstance(arg, torch.Tensor):
        return arg.dtype, arg.data_ptr() & 15 == 0
    if type(arg) is int:
        return arg == 1, arg & 15 == 0, -(1 << 31) <= arg < 1 << 31
    return type(arg)


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
