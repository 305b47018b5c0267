"""The short way for a call like one that was checked before.

What a guard judges is metadata: type, dtype, device, shape and strides of every tensor, and the plain arguments. So
once a call has been accepted, a call with the same metadata needs neither the checks nor the launch's preparations; it
goes straight to the compiled kernel with its own addresses. What depends on addresses is looked at every time: their
alignment, which the kernel was compiled for, and (where the kernel cares) that what is written overlaps nothing.

Everything else, a first call, a refused one, a FakeTensor, a tensor in an odd place, takes the long way.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import chain
from typing import Any
from weakref import WeakSet

import torch

from kernels.launch import Launched, run_eagerly

# PyTorch's own guard for compiled graphs compares the metadata of all tensors in one call of C++. It is not public.
try:
    from torch._C._dynamo.guards import TensorGuards
except ImportError:
    TensorGuards = None  # type: ignore[assignment,misc]

# Which plain arguments may be part of what is remembered: those that compare by value and cannot change.
_PLAIN_OPTIONS = {int, float, bool, type(None)}
# Alignment in bytes that Triton compiles for.
_ALIGNMENT = 16
_MOST_REMEMBERED = 1024
_data_ptr = torch.Tensor.data_ptr
_everything: WeakSet[KnownCalls] = WeakSet()


class KnownCalls:
    """The calls of one function that were accepted and launched."""

    def __init__(self, *, by: int) -> None:
        """Nothing is known yet.

        Args:
            by: which tensor's shape to look calls up by: the one that differs most between them.
        """
        self._by = by
        self._known: dict[tuple[Any, ...], list[KnownCall]] = {}
        self._last: KnownCall | None = None
        _everything.add(self)

    def launch(self, tensors: tuple[torch.Tensor, ...], options: tuple[Any, ...] = ()) -> bool:
        """Launch a call with this metadata, if one like it is known.

        Args:
            tensors: of the call; those that are None left out.
            options: its plain arguments, and which of the tensors are None.

        Returns:
            False if none is known, or not for these addresses; nothing has been done then.
        """
        # Mostly the last call comes again, and looking it up would cost as much as comparing it.
        known = self._last
        if known is not None and known.is_for(tensors, options):
            return known.launch(tensors)
        known = self._last = self.find(tensors, options)
        return known is not None and known.launch(tensors)

    def find(self, tensors: tuple[torch.Tensor, ...], options: tuple[Any, ...] = ()) -> KnownCall | None:
        """The call with the metadata of this one, if one is known; arguments are those of :meth:`launch`."""
        try:
            known = self._known.get((tensors[self._by].shape, len(tensors), options), ())
        except (AttributeError, TypeError):
            return None  # Not a tensor, or an option that is no number: the long way will say so.
        return next((one for one in known if one.is_for(tensors, options)), None)

    def remember(
        self,
        launched: Launched | None,
        tensors: tuple[torch.Tensor, ...],
        options: tuple[Any, ...] = (),
        *,
        passed: tuple[torch.Tensor, ...] | None = None,
        written: Sequence[int] = (),
    ) -> None:
        """Remember how an accepted call was launched, if calls like it can be launched the same way.

        Args:
            launched: what the launch left behind.
            tensors: as for :meth:`launch`.
            options: likewise.
            passed: the tensors that were launched with, where they are more than the call's.
            written: places among these of tensors that no other may overlap.
        """
        passed = tensors if passed is None else passed
        if launched is None or not _PLAIN_OPTIONS.issuperset(map(type, options)):
            return
        pointers = [tensor.data_ptr() for tensor in passed]
        # A tensor that was converted on the way would have to be converted again.
        if pointers != launched.pointers or any(pointer % _ALIGNMENT for pointer in pointers):
            return
        if sum(map(len, self._known.values())) >= _MOST_REMEMBERED:
            self.forget()
        sizes = [tensor.nbytes for tensor in passed]
        known = KnownCall(launched, tensors, options, sizes, written)
        self._known.setdefault((tensors[self._by].shape, len(tensors), options), []).append(known)

    def forget(self) -> None:
        """Let every call take the long way again."""
        self._known.clear()
        self._last = None


def forget_known_calls() -> None:
    """Let every call of every kernel be checked and prepared anew, for who changes how that is done."""
    for calls in _everything:
        calls.forget()


class KnownCall:
    """One call that was accepted, and the launch that it led to."""

    __slots__ = ("_is_like", "_launched", "_number", "_options", "_seen", "_sizes", "_written")

    def __init__(
        self,
        launched: Launched,
        tensors: tuple[torch.Tensor, ...],
        options: tuple[Any, ...],
        sizes: list[int],
        written: Sequence[int],
    ) -> None:
        self._number, self._is_like = len(tensors), _metadata_guard(tensors)
        # By hash, as in a dict: a tensor of one element is equal to a number, and asking it would wait for the device.
        self._options = {options}
        self._launched = launched
        self._sizes, self._written = sizes, written
        # Addresses that were last found to do; serving code passes the same ones step after step.
        self._seen: list[int] | None = None

    def is_for(self, tensors: tuple[torch.Tensor, ...], options: tuple[Any, ...]) -> bool:
        """Whether a call has the metadata of this one and runs as it is, outside any mode or transform."""
        try:
            same = options in self._options and len(tensors) == self._number
        except TypeError:
            return False  # An option that can change.
        return same and run_eagerly() and self._is_like(*tensors)

    def launch(self, tensors: tuple[torch.Tensor, ...]) -> bool:
        """Launch with other addresses. False, with nothing launched, if the kernel was not compiled for those."""
        pointers = list(map(_data_ptr, tensors))
        if pointers != self._seen:
            if reduce(operator.or_, pointers) % _ALIGNMENT or (self._written and not self._are_apart(pointers)):
                return False
            self._seen = pointers
        self._launched.again(pointers)
        return True

    def _are_apart(self, pointers: list[int]) -> bool:
        spans = [(start, start + size) for start, size in zip(pointers, self._sizes, strict=True)]
        for place in self._written:
            start, end = spans[place]
            for other, (other_start, other_end) in enumerate(spans):
                if place != other and start < other_end and other_start < end:
                    return False
        return True


def _metadata_guard(tensors: tuple[torch.Tensor, ...]) -> Callable[..., bool]:
    """A function that says whether as many tensors have the same type, dtype, device, shape and strides as these."""
    if TensorGuards is not None:
        # It would leave a dim out of the comparison whose size or stride is None.
        sizes: list[Any] = [list(tensor.shape) for tensor in tensors]
        strides: list[Any] = [list(tensor.stride()) for tensor in tensors]
        try:
            is_like = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
        except TypeError:
            return _compare_in_python(tensors)  # A release that takes other arguments.
        # It refuses a tensor that is passed twice, even one that was passed twice at first.
        if is_like(*tensors):
            return is_like
    return _compare_in_python(tensors)


def _compare_in_python(tensors: tuple[torch.Tensor, ...]) -> Callable[..., bool]:
    expected = _metadata(tensors)

    def is_like(*others: torch.Tensor) -> bool:
        try:
            return _metadata(others) == expected
        except AttributeError:
            return False  # Not a tensor.

    return is_like


def _metadata(tensors: tuple[torch.Tensor, ...]) -> list[Any]:
    each = [(type(t), t.shape, t.stride(), t.dtype, t.device, t.is_conj(), t.is_neg()) for t in tensors]
    return list(chain.from_iterable(each))
