"""Exercises of the FP8 sparse MLA prefill."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

import kernels
from helpers import topology
from helpers.atlas import spec
from helpers.atlas.changes import contiguous
from helpers.calls import Call, relative_error
from helpers.exercises.exercise import Exercise, WrongError
from helpers.exercises.predictions import HOW, judge_predictions
from helpers.topology import CPU, HOME, OTHER, stand_in, stand_ins
from kernels import GuardError

PREFILL = "sparse_mla_q8kv8_prefill_fwd"
TOKENS, HEADS = 2, 64


def _message(call: Call) -> str:
    """What the guards say about a call; nothing if they accept it."""
    try:
        call.run()
    except GuardError as error:
        return str(error)
    return ""


# Predict the message.


def _situation(letter: str) -> Call:
    call = Call.valid(spec(PREFILL))
    if letter == "A":
        call["out"] = call["out"].to(torch.float16)
        call.move("out", OTHER)
    elif letter == "B":
        call["q"] = contiguous(call["q"].narrow(1, 0, 16))
        call["kv_scale"] = 0.012
    elif letter == "C":
        call.args |= {"out": None, "max_logits": None, "lse": None}
        call.move("q_scale", CPU)
    elif letter == "D":
        size = TOKENS * HEADS
        buffer = call["lse"].new_empty(2 * size)
        call["max_logits"] = buffer.narrow(0, 0, size).view(TOKENS, HEADS)
        call["lse"] = buffer.narrow(0, size, size).view(TOKENS, HEADS)
    else:
        call.move_all(OTHER)
        call["topk_length"] = call["topk_length"].to(torch.int64)
        call.move("topk_length", CPU)
    return call


_REASONS = {
    "A": "of one output, shape and dtype are checked before its device",
    "B": "the sizes of q are checked before the scales",
    "C": "outputs that are left out are allocated where q is, but a scale must be there already",
    "D": "two views of one buffer that share no byte do not overlap",
    "E": "the dtype of topk_length is checked before its device",
}


def _judge_predictions(predictions: Mapping[str, str]) -> str:
    judge_predictions(predictions, _REASONS, lambda letter: _message(_situation(letter)), PREFILL)
    return "Inputs before outputs, and within one argument the device is not always the first question."


PREDICT = Exercise(
    id="sparse_mla.predict",
    title="predict the message",
    statement="Everything is on `cuda:0`, with 2 tokens and 64 heads, then one or two things go wrong. Which message "
    f"comes? {HOW}\n\n"
    "- **A**: `out` is float16 and on `cuda:1`.\n"
    "- **B**: `q` has 16 heads, and `kv_scale` is the Python float 0.012.\n"
    "- **C**: no output is given, and `q_scale` is on the CPU.\n"
    "- **D**: `max_logits` and `lse` are the two halves of one buffer.\n"
    "- **E**: everything is on `cuda:1`, except `topk_length`, which is int64 and on the CPU.",
    answer="predictions",
    stub="""\
predictions: dict[str, str] = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ...}
""",
    hints=(
        "The order: the three large inputs, their sizes, topk_length, the sink, the scales, the outputs.",
        "One of the five is accepted.",
        "A and E are about a dtype, although something is on the wrong device too.",
    ),
    judge=_judge_predictions,
)


# Repair rank code.


def _judge_allocate(allocate_outputs: Callable[[torch.Tensor], dict[str, torch.Tensor]]) -> str:
    for device in (OTHER, HOME):
        call = Call.valid(spec(PREFILL), on=device)
        q = stand_in(tuple(call["q"].shape), None, call["q"].dtype, device)
        with stand_ins():
            outputs = allocate_outputs(q)
        if not isinstance(outputs, dict) or sorted(outputs) != ["lse", "max_logits", "out"]:
            raise WrongError(f"expected a dict of out, max_logits and lse, got {outputs!r}")
        for name, tensor in call.tensors.items():
            call[name] = stand_in(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)
        call.args |= outputs
        if said := _message(call):
            raise WrongError(f"for a q on {device} the kernel said\n  {said}")
    return "The buffers follow q, and each has memory of its own."


ALLOCATE = Exercise(
    id="sparse_mla.rank",
    title="repair rank code",
    statement="Each rank allocates the buffers of its prefill once, for its own `q`. Rank 1 reports "
    "`out must be on device cuda:1, got cuda:0`. Repair the function for every rank, and do not stop at the first "
    "error: there is another one behind it, which rank 0 reports as well. Leave the current device alone.",
    answer="allocate_outputs",
    stub='''\
def allocate_outputs(q: torch.Tensor) -> dict[str, torch.Tensor]:
    """Buffers for the results of one prefill of q [s_q, h_q, d_qk]."""
    s_q, h_q, _ = q.shape
    out = torch.empty(s_q, h_q, 512, dtype=torch.bfloat16, device="cuda")
    max_logits = lse = torch.empty(s_q, h_q, dtype=torch.float32, device="cuda")
    return {"out": out, "max_logits": max_logits, "lse": lse}
''',
    hints=(
        'device="cuda" is the current device, which has nothing to do with q.',
        "How many tensors are max_logits and lse?",
        "device=q.device three times, and torch.empty three times.",
    ),
    judge=_judge_allocate,
)


# Masked keys.


def _softmax_case(name: str, logits: list[float], valid: list[bool]) -> tuple[str, torch.Tensor, torch.Tensor]:
    return name, torch.tensor(logits, dtype=torch.float64), torch.tensor(valid)


_SOFTMAX_CASES = (
    _softmax_case("all keys valid", [0.0, 1.0, -1.0, 0.5], [True] * 4),
    _softmax_case("two of eight keys valid", [1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], [True] * 2 + [False] * 6),
    _softmax_case("the valid keys far below the masked ones", [-900.0, -901.0, 0.0, 0.0], [True, True, False, False]),
    _softmax_case("no key valid", [0.0, 0.0, 0.0, 0.0], [False] * 4),
)


def _judge_attend(attend: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]) -> str:
    for name, logits, valid in _SOFTMAX_CASES:
        values, expected = _attended(logits, valid)
        _compare_attended(name, attend(logits, values.clone(), valid), expected)
        # What lies in rows that do not count must not matter, and NaN times zero is NaN.
        poisoned = values.masked_fill(~valid[:, None], float("nan"))
        _compare_attended(f"{name}, NaN in the masked rows", attend(logits, poisoned, valid), expected)
    for name, logits, valid in _SOFTMAX_CASES:
        values, expected = _attended(logits, valid)
        unknown = logits.masked_fill(~valid, float("nan"))
        _compare_attended(f"{name}, NaN in the masked logits", attend(unknown, values.clone(), valid), expected)
    logits, values = torch.tensor([0.0, 1.0], dtype=torch.float64), torch.ones(2, 2, dtype=torch.float64)
    values[1, 0] = float("nan")
    attended = attend(logits, values.clone(), torch.tensor([True, True]))
    _compare_attended("NaN in a valid row", attended, torch.tensor([float("nan"), 1.0], dtype=torch.float64))
    return "A masked key is in neither sum, and where none is left there is nothing to divide by."


def _attended(logits: torch.Tensor, valid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Values [keys, 2] and what their attention should be [2]."""
    values = torch.arange(1.0, 1.0 + 2 * len(logits), dtype=torch.float64).reshape(-1, 2)
    if not valid.any():
        return values, values.new_zeros(2)
    weights = torch.exp(logits[valid] - logits[valid].max())
    return values, weights @ values[valid] / weights.sum()


def _compare_attended(name: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        raise WrongError(f"{name}: expected a tensor of {len(expected)} numbers, got {got!r}")
    if not torch.allclose(got.double(), expected, rtol=1e-6, atol=1e-9, equal_nan=True):
        shown = [[round(number, 4) for number in row.tolist()] for row in (got, expected)]
        raise WrongError(f"{name}\n  you got  {shown[0]}\n  expected {shown[1]}")


ATTEND = Exercise(
    id="sparse_mla.masked",
    title="masked keys",
    statement="This softmax gives outputs of the right direction, but those of a prompt's first tokens are too short. "
    "Repair it: keys that are not `valid` must not count at all, whatever lies in their rows of `values`, which may be "
    "NaN, and whatever their logits are. A NaN in a valid row has to stay visible. Where no key is valid the result is "
    "zero.",
    answer="attend",
    stub='''\
def attend(logits: torch.Tensor, values: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Attention of one head: logits [keys], values [keys, d], valid [keys] bool; returns [d]."""
    logits = logits * valid
    weights = torch.exp(logits - logits.max())
    return weights @ (values * valid[:, None]) / weights.sum()
''',
    hints=(
        "What is the weight of a key whose logit is 0? Is that key in the sum below the line?",
        "-inf is a logit of weight 0. But 0 times NaN is NaN, and a row of -inf has no maximum to subtract.",
        "On the CPU you may simply pick: logits[valid], values[valid], and return zeros if nothing is left.",
    ),
    judge=_judge_attend,
)


# Any number of heads.


def _judge_any_heads(prefill_any_heads: Callable[..., torch.Tensor]) -> str:
    for heads in (16, 40, 96):
        call = Call.valid(spec(PREFILL), on=topology.runnable())
        # As bytes: not every PyTorch concatenates FP8.
        q = torch.cat([call["q"].view(torch.uint8)] * 2, 1).view(call["q"].dtype)
        call["q"] = contiguous(q.narrow(1, 0, heads))
        # Large enough to take most of the weight.
        call["attn_sink"] = contiguous(torch.cat([call["attn_sink"]] * 2).narrow(0, 0, heads)) + 6
        expected = call.spec.expected(call.args)["out"]
        names = ("q", "attn_sink", "kv", "indices", "sm_scale", "q_scale", "kv_scale", "topk_length")
        with kernels.interpreter(topology.runnable() == CPU):
            got = prefill_any_heads(**{name: call[name] for name in names})
        if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
            shape = tuple(got.shape) if isinstance(got, torch.Tensor) else got
            raise WrongError(f"for {heads} heads expected out of shape {tuple(expected.shape)}, got {shape}")
        if relative_error(got, expected) > call.spec.tolerance:
            raise WrongError(
                f"for {heads} heads the shape is right, the numbers are not: are these q's heads, with their sinks?"
            )
    return "Heads do not see each other, so heads of zeros beside them change nothing but the time."


ANY_HEADS = Exercise(
    id="sparse_mla.heads",
    title="any number of heads",
    statement="A rank has 16 heads, or 40, or 96, and the kernel takes multiples of 64. Write a function that makes "
    "the call for any number of heads and returns `out` [s_q, h_q, 512] for just these. `others` holds the arguments "
    "`kv`, `indices`, `sm_scale`, `q_scale`, `kv_scale` and `topk_length` as the kernel takes them.",
    answer="prefill_any_heads",
    stub='''\
def prefill_any_heads(q: torch.Tensor, attn_sink: torch.Tensor, **others: Any) -> torch.Tensor:
    """Attention of q [s_q, h_q, d_qk] with sinks [h_q], for any h_q."""
    raise NotImplementedError  # three lines
''',
    hints=(
        "kernels.pad_q8kv8_heads pads q and its sinks together.",
        "The kernel returns out, max_logits and lse, for the padded heads.",
        "Keep the first q.shape[1] heads; they are the second dimension of out.",
    ),
    judge=_judge_any_heads,
)

EXERCISES = (PREDICT, ALLOCATE, ATTEND, ANY_HEADS)
