"""The sparse MLA prefill with its guard switched off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest import mock

from helpers import topology
from helpers.atlas import spec
from helpers.calls import Call
from kernels import interpreter, sparse_mla_q8kv8_prefill_fwd
from kernels.sparse_mla import checks


def valid_call() -> Call:
    """A call that nothing is wrong with, its tensors real, on this machine's first GPU or else on the CPU."""
    return Call.valid(spec("sparse_mla_q8kv8_prefill_fwd"), on=topology.runnable())


def prefill_unguarded(arguments: Mapping[str, Any]) -> None:
    """Make the call whatever its tensors are; without a GPU through Triton's interpreter."""
    with mock.patch.object(checks, "check_prefill"), interpreter():
        sparse_mla_q8kv8_prefill_fwd(**arguments)
