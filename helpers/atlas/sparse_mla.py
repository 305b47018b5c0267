"""Records of the FP8 sparse MLA prefill."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any
from unittest import mock

from helpers.atlas.changes import (
    change,
    contiguous,
    follow,
    in_order,
    move,
    move_all,
    replace,
    restore,
    strided,
    to_dtype,
)
from helpers.atlas.record import Record, Spec

if TYPE_CHECKING:
    import torch

    from helpers.atlas.changes import Change
    from helpers.calls import Call

PREFILL = "sparse_mla_q8kv8_prefill_fwd"
NOTEBOOK = "sparse_mla"

TOKENS, HEADS, WIDTH, TOPK, ROWS = 2, 64, 576, 128, 96


def _sample(device: torch.device, seed: int) -> dict[str, Any]:
    import torch

    # Drawn on the CPU, so that every machine sees the same numbers.
    generator = torch.Generator().manual_seed(seed)
    q, kv = (torch.randn(shape, generator=generator) for shape in ((TOKENS, HEADS, WIDTH), (ROWS, 1, WIDTH)))
    # Some indices repeat, some are -1, some lie past the end of the cache.
    indices = torch.randint(-1, ROWS + 8, (TOKENS, 1, TOPK), generator=generator, dtype=torch.int32)
    nan = float("nan")
    arguments = {
        "q": (q / 0.01).clamp(-448, 448).to(torch.float8_e4m3fn),
        "kv": (kv / 0.012).clamp(-448, 448).to(torch.float8_e4m3fn),
        "indices": indices,
        "sm_scale": 192**-0.5,
        "q_scale": torch.tensor(0.01),
        "kv_scale": torch.tensor(0.012),
        "d_v": 512,
        "attn_sink": torch.randn(HEADS, generator=generator),
        "topk_length": torch.tensor([TOPK, 70], dtype=torch.int32),
        "out": torch.full((TOKENS, HEADS, 512), nan, dtype=torch.bfloat16),
        "max_logits": torch.full((TOKENS, HEADS), nan),
        "lse": torch.full((TOKENS, HEADS), nan),
        "check_topk_length_values": False,
    }
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}


def _expected(args: dict[str, Any]) -> dict[str, torch.Tensor]:
    from kernels.sparse_mla.reference import sparse_mla_prefill_reference

    inputs = ("q", "kv", "indices", "sm_scale", "q_scale", "kv_scale", "attn_sink", "topk_length")
    results = sparse_mla_prefill_reference(**{name: args[name] for name in inputs})
    return dict(zip(("out", "max_logits", "lse"), results, strict=True))


SPECS = (
    Spec(
        function=PREFILL,
        kernel="sparse_mla",
        notebook=NOTEBOOK,
        sample=_sample,
        outputs=("out", "max_logits", "lse"),
        expected=_expected,
        tolerance=2e-2,
    ),
)

# What provokes and repairs.


def _narrow(dim: int, size: int) -> Any:
    """A packed copy of the first ``size`` entries along a dim."""
    return lambda tensor: contiguous(tensor.narrow(dim, 0, size))


def _in_wider_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as a slice of rows that hold more than these channels."""
    import torch

    wide = torch.cat((tensor, tensor.narrow(-1, 0, 80)), -1)
    return wide.narrow(-1, 0, tensor.shape[-1])


def _every_second(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as one column of a two-column tensor."""
    import torch

    return torch.stack((tensor, tensor), -1).select(-1, 0)


def _pad_heads(call: Call) -> None:
    from kernels import pad_q8kv8_heads

    call["q"], _ = pad_q8kv8_heads(call["q"])


def _pad_topk(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.nn.functional.pad(tensor, (0, TOPK - tensor.shape[-1]), value=-1)


def _share_statistics(call: Call) -> None:
    """Cut max_logits and lse out of one buffer that is too small for both."""
    size = TOKENS * HEADS
    buffer = call["lse"].new_full((size + size // 2,), float("nan"))
    call["max_logits"] = buffer.narrow(0, 0, size).view(TOKENS, HEADS)
    call["lse"] = buffer.narrow(0, size // 2, size).view(TOKENS, HEADS)


def _kv_in_out(call: Call) -> None:
    memory = call["out"].flatten().view(call["kv"].dtype)
    call["kv"] = memory.narrow(0, 0, ROWS * WIDTH).view(ROWS, 1, WIDTH)


def _scale_in_max_logits(call: Call) -> None:
    call["q_scale"] = call["max_logits"].flatten().narrow(0, 0, 1)


def _sink_in_lse(call: Call) -> None:
    call["attn_sink"] = call["lse"].select(0, 0)


def _too_long(call: Call) -> None:
    # Real tensors on the CPU, whose values can be read on every machine.
    call.args |= _sample(call.cpu, 0)
    call["topk_length"] = call["topk_length"] + 1
    call["check_topk_length_values"] = True


def _interpreter() -> AbstractContextManager[Any]:
    from kernels import interpreter

    return interpreter()


def _ampere() -> AbstractContextManager[Any]:
    """Let the guard find an A100, whatever the machine has."""
    from kernels.known_calls import forget_known_calls

    forget_known_calls()
    return mock.patch("kernels.sparse_mla.checks.compute_capability", return_value=(8, 0))


def _nothing(call: Call) -> None:
    """Leave the call as it is."""


# Families of records, one member for each argument.


def _record(id: str, **fields: Any) -> Record:
    return Record(id=f"sparse_mla.{id}", function=PREFILL, **fields)


def _not_cuda(name: str, happens: str, cases: tuple[str, ...] = ()) -> Record:
    anchor = "kv" if name == "q" else "q"
    return _record(
        f"cuda/{name}",
        error="DeviceError",
        message="{argument} must be a CUDA tensor",
        example=f"{name} must be a CUDA tensor",
        meaning=f"{name} is in host memory, where the kernel cannot follow a pointer.",
        happens=happens,
        fix=f"{name} = {name}.to({anchor}.device)",
        provoke=move(name, "cpu"),
        repair=follow(name, anchor),
        cases=cases,
    )


def _elsewhere(name: str, happens: str, cases: tuple[str, ...] = ()) -> Record:
    return _record(
        f"device/{name}",
        error="DeviceError",
        message="{argument} must be on q's device {expected}, got {got}",
        example=f"{name} must be on q's device cuda:0, got cuda:1",
        meaning=f"The kernel runs where q is, and {name} is on another GPU.",
        happens=happens,
        fix=f"{name} = {name}.to(q.device)",
        provoke=move(name, "other"),
        repair=follow(name, "q"),
        section="the-error-in-the-wild" if name == "kv" else "what-it-refuses",
        cases=cases,
    )


def _not_contiguous(name: str, happens: str, how: Any = _in_wider_rows) -> Record:
    return _record(
        f"contiguous/{name}",
        error="LayoutError",
        message="{argument} must be contiguous",
        example=f"{name} must be contiguous",
        meaning=f"The kernel computes addresses in {name} from its sizes alone, so its elements must be packed.",
        happens=happens,
        fix=f"{name} = {name}.contiguous()",
        provoke=change(name, how),
        repair=change(name, contiguous),
    )


def _not_fp8(name: str, happens: str) -> Record:
    return _record(
        f"fp8/{name}",
        error="DtypeError",
        message="{argument} must be torch.float8_e4m3fn, got {got}",
        example=f"{name} must be torch.float8_e4m3fn, got torch.bfloat16",
        meaning=f"The scores are products of FP8 matrix units, and {name} holds wider values.",
        happens=happens,
        fix=f"{name} = ({name} / {name}_scale).clamp(-448, 448).to(torch.float8_e4m3fn)",
        provoke=to_dtype(name, "bfloat16"),
        repair=to_dtype(name, "float8_e4m3fn"),
    )


def _scale_records(name: str) -> tuple[Record, ...]:
    of = name.removesuffix("_scale")
    return (
        _record(
            f"scale_tensor/{name}",
            error="ArgumentError",
            message="{argument} must be a torch.Tensor",
            example=f"{name} must be a torch.Tensor",
            meaning=f"{name} is read by the kernel from GPU memory, so a Python number will not do.",
            happens="Static quantisation keeps its scales as plain numbers, in a config for instance.",
            fix=f"{name} = torch.tensor({name}, dtype=torch.float32, device=q.device)",
            provoke=replace(name, 0.01),
            repair=restore(name),
            cases=("P18",),
        ),
        _not_cuda(name, "torch.tensor(scale) without a device argument makes a CPU tensor.", ("P18",)),
        _elsewhere(name, "Scales are loaded once for the whole model, which spans several GPUs.", ("P18",)),
        _record(
            f"scale_dtype/{name}",
            error="DtypeError",
            message="{argument} must be float32, got {got}",
            example=f"{name} must be float32, got torch.float64",
            meaning=f"The kernel takes one float32 value from the address of {name}.",
            happens="A scale computed in NumPy, whose default is float64.",
            fix=f"{name} = {name}.to(torch.float32)",
            provoke=to_dtype(name, "float64"),
            repair=to_dtype(name, "float32"),
            cases=("P18",),
        ),
        _record(
            f"scale_shape/{name}",
            error="ShapeError",
            message="{argument} must be a scalar tensor, got shape {got}",
            example=f"{name} must be a scalar tensor, got shape (64,)",
            meaning=f"One scale serves all of {of}: the kernel folds it into the softmax scale.",
            happens="Scales per head or per token, which other kernels take.",
            fix=f"quantise {of} with one scale and pass that",
            provoke=change(name, lambda t: t.reshape(1).repeat(HEADS)),
            repair=change(name, lambda t: t.select(0, 0)),
        ),
    )


_OUTPUTS = {
    # name: shape, dtype, a wrong shape as it comes about, a wrong dtype
    "out": ("(2, 64, 512)", "bfloat16", "(2, 16, 512)", "float16"),
    "max_logits": ("(2, 64)", "float32", "(2, 16)", "bfloat16"),
    "lse": ("(2, 64)", "float32", "(2, 16)", "float64"),
}


def _output_records(name: str) -> tuple[Record, ...]:
    shape, dtype, wrong_shape, wrong_dtype = _OUTPUTS[name]
    sizes = "*q.shape[:2], 512" if name == "out" else "*q.shape[:2]"
    allocate = f"{name} = torch.empty({sizes}, dtype=torch.{dtype}, device=q.device)"
    return (
        _record(
            f"out_shape/{name}",
            error="ShapeError",
            message="{argument} must have shape {expected}, got {got}",
            example=f"{name} must have shape {shape}, got {wrong_shape}",
            meaning=f"The kernel writes every head of q to {name}, and the buffer holds another number.",
            happens="The buffer was made for the heads of the rank, q was padded to 64 afterwards.",
            fix=allocate,
            provoke=change(name, _narrow(1, 16)),
            repair=restore(name),
            cases=("P17",),
        ),
        _record(
            f"out_dtype/{name}",
            error="DtypeError",
            message="{argument} must have dtype {expected}, got {got}",
            example=f"{name} must have dtype torch.{dtype}, got torch.{wrong_dtype}",
            meaning=f"The kernel writes {dtype}, whatever the dtype of the model.",
            happens="A buffer with the model's dtype, or the default one.",
            fix=allocate,
            provoke=to_dtype(name, wrong_dtype),
            repair=restore(name),
        ),
        _record(
            f"out_device/{name}",
            error="DeviceError",
            message="{argument} must be on device {expected}, got {got}",
            example=f"{name} must be on device cuda:0, got cuda:1",
            meaning=f"The kernel runs where q is and would write to {name} through a pointer into another GPU.",
            happens="Rank code that allocates with a bare device='cuda' or with a device kept from start-up: all "
            "buffers land on one GPU, and every other rank passes buffers that are not its own.",
            fix=allocate,
            provoke=move(name, "other"),
            repair=follow(name, "q"),
            section="the-error-in-the-wild",
            seed=0 if name == "out" else None,
            cases=("P03",),
        ),
        _record(
            f"out_layout/{name}",
            error="LayoutError",
            message="{argument} must be contiguous",
            example=f"{name} must be contiguous",
            meaning=f"The kernel writes packed rows, and the elements of {name} lie apart.",
            happens="A transposed buffer, heads first, because the next layer wants it so.",
            fix=f"{allocate}, and transpose the result",
            provoke=change(name, strided),
            repair=change(name, contiguous),
        ),
    )


def _overlap_record(name: str, other: str, provoke: Change, happens: str) -> Record:
    return _record(
        f"overlap/{name}",
        error="OverlapError",
        message="{argument} must not overlap {other}",
        example=f"{name} must not overlap {other}",
        meaning=f"Programs of the kernel would read {other} while others write {name} to the same memory.",
        happens=happens,
        fix=f"{name} = torch.empty_like({name})",
        provoke=provoke,
        repair=restore(name, other),
    )


OPERAND_RECORDS = (
    _record(
        "q_rank/q",
        error="RankError",
        message="q must have shape (s_q, h_q, d_qk), got {got}",
        example="q must have shape (s_q, h_q, d_qk), got (2, 36864)",
        meaning="The kernel wants one row of channels for each head of each token.",
        happens="The output of the projection before it was split into heads, or a batch dim that was kept.",
        fix="q = q.reshape(s_q, h_q, d_qk)",
        provoke=change("q", lambda t: t.flatten(1)),
        repair=change("q", lambda t: t.reshape(TOKENS, HEADS, WIDTH)),
    ),
    _record(
        "kv_rank/kv",
        error="RankError",
        message="kv must have shape (s_kv, h_kv, d_qk), got {got}",
        example="kv must have shape (s_kv, h_kv, d_qk), got (96, 576)",
        meaning="The latent cache has a head dim of size 1, which says that all heads share it.",
        happens="A pool kept as [slots, width], without the head dim.",
        fix="kv = kv.unsqueeze(1)",
        provoke=change("kv", lambda t: t.squeeze(1)),
        repair=change("kv", lambda t: t.unsqueeze(1)),
    ),
    _record(
        "indices_rank/indices",
        error="RankError",
        message="indices must have shape (s_q, h_kv, topk), got {got}",
        example="indices must have shape (s_q, h_kv, topk), got (2, 128)",
        meaning="The indices have a head dim of size 1, like the cache that they point into.",
        happens="The output of topk over [tokens, cache rows] handed over as it is.",
        fix="indices = indices.unsqueeze(1)",
        provoke=change("indices", lambda t: t.squeeze(1)),
        repair=change("indices", lambda t: t.unsqueeze(1)),
    ),
    _not_cuda("q", "A test builds its queries with the default device."),
    _not_cuda("kv", "A cache built on the CPU, for offloading or in a test, and never moved."),
    _not_cuda("indices", "The indexer ran on the host.", ("P02",)),
    _elsewhere("kv", "The cache pool belongs to another rank's GPU.", ("P01", "P03")),
    _elsewhere("indices", "An indexer on another GPU chose the rows; its result was not brought over.", ("P02",)),
    _not_fp8("q", "Queries that were not quantised, beside a cache that is."),
    _not_fp8("kv", "A cache that was allocated in the model's dtype."),
    _not_contiguous("q", "A slice of a projection that holds more than the queries."),
    _not_contiguous("kv", "A slice of cache entries that also hold their scales."),
    _not_contiguous("indices", "The first columns of a wider index buffer."),
)

SIZE_RECORDS = (
    _record(
        "kv_width/kv",
        error="ShapeError",
        message="kv d_qk must match q d_qk={expected}, got {got}",
        example="kv d_qk must match q d_qk=576, got 512",
        meaning="Queries carry a rotary tail of 64 channels, the cache does not, or the other way round.",
        happens="The rotary part of the cache is kept in a tensor of its own.",
        fix="kv = torch.cat((latent, rotary), -1)",
        provoke=change("kv", _narrow(2, 512)),
        repair=restore("kv"),
    ),
    _record(
        "heads/q",
        error="ShapeError",
        message="sparse_mla_q8kv8_prefill_fwd requires h_q padded to a positive multiple of 64, got {got}",
        example="sparse_mla_q8kv8_prefill_fwd requires h_q padded to a positive multiple of 64, got 16",
        meaning="One program multiplies 64 heads at a time, the height of Hopper's matrix instruction.",
        happens="Tensor parallelism divided 128 heads among 8 ranks and left 16 on each.",
        fix="q, attn_sink = pad_q8kv8_heads(q, attn_sink), and keep out[:, :h_q]",
        provoke=change("q", _narrow(1, 16)),
        repair=_pad_heads,
        cases=("P17",),
    ),
    _record(
        "kv_heads/kv",
        error="ShapeError",
        message="sparse_mla_q8kv8_prefill_fwd requires h_kv=1, got {got}",
        example="sparse_mla_q8kv8_prefill_fwd requires h_kv=1, got 2",
        meaning="Multi-head latent attention keeps one latent vector per token, which all heads share.",
        happens="A cache with several key heads, of a model with grouped-query attention.",
        fix="pass the latent cache [s_kv, 1, d_qk]",
        provoke=change("kv", lambda t: t.repeat(1, 2, 1)),
        repair=change("kv", _narrow(1, 1)),
    ),
    _record(
        "width/q",
        error="ShapeError",
        message="sparse_mla_q8kv8_prefill_fwd supports d_qk=512/576, got {got}",
        example="sparse_mla_q8kv8_prefill_fwd supports d_qk=512/576, got 448",
        meaning="The kernel knows 512 latent channels, with or without a rotary tail of 64.",
        happens="A model with another latent size.",
        fix="use a kernel for that width, or pad q and kv with zeros to 512 channels",
        provoke=in_order(change("q", _narrow(2, 448)), change("kv", _narrow(2, 448))),
        repair=restore("q", "kv"),
    ),
    _record(
        "indices_shape/indices",
        error="ShapeError",
        message="indices must have shape ({s_q}, {h_kv}, topk), got {got}",
        example="indices must have shape (2, 1, topk), got (1, 1, 128)",
        meaning="Every token of q brings its own row of indices.",
        happens="q holds padding tokens that the indexer did not see.",
        fix="pad indices with rows of -1 to q.shape[0]",
        provoke=change("indices", _narrow(0, 1)),
        repair=restore("indices"),
    ),
    _record(
        "indices_dtype/indices",
        error="DtypeError",
        message="indices must be int32, got {got}",
        example="indices must be int32, got torch.int64",
        meaning="The kernel reads four bytes per index.",
        happens="torch.topk returns int64 indices.",
        fix="indices = indices.to(torch.int32)",
        provoke=to_dtype("indices", "int64"),
        repair=to_dtype("indices", "int32"),
    ),
    _record(
        "topk/indices",
        error="ShapeError",
        message="Q8KV8 sparse-prefill topk width must be a positive multiple of 128, got {got}",
        example="Q8KV8 sparse-prefill topk width must be a positive multiple of 128, got 100",
        meaning="Rows of indices are worked off in blocks of keys without a remainder.",
        happens="A short prompt, with topk cut to the number of cache rows.",
        fix="indices = torch.nn.functional.pad(indices, (0, -indices.shape[2] % 128), value=-1)",
        provoke=change("indices", _narrow(2, 100)),
        repair=change("indices", _pad_topk),
    ),
)

OPTION_RECORDS = (
    _record(
        "length_shape/topk_length@dtype",
        error="ShapeError",
        message="topk_length must be int32 with shape ({s_q},), got {got}/{dtype}",
        example="topk_length must be int32 with shape (2,), got (2,)/torch.int64",
        meaning="The kernel reads one four-byte length per token.",
        happens="Lengths from a sum over a mask, which are int64.",
        fix="topk_length = topk_length.to(torch.int32)",
        provoke=to_dtype("topk_length", "int64"),
        repair=to_dtype("topk_length", "int32"),
    ),
    _record(
        "length_shape/topk_length@shape",
        error="ShapeError",
        message="topk_length must be int32 with shape ({s_q},), got {got}/{dtype}",
        example="topk_length must be int32 with shape (2,), got (1,)/torch.int32",
        meaning="Every token of q has its own length.",
        happens="Lengths per request instead of per token.",
        fix="topk_length = topk_length.repeat_interleave(tokens_per_request)",
        provoke=change("topk_length", _narrow(0, 1)),
        repair=restore("topk_length"),
    ),
    _not_cuda("topk_length", "Lengths planned on the host."),
    _elsewhere("topk_length", "Lengths from the planning rank's GPU."),
    _not_contiguous("topk_length", "One column of a [tokens, 2] table.", _every_second),
    _record(
        "length_values/topk_length",
        error="ArgumentError",
        message="topk_length values must satisfy 0 <= topk_length <= topk ({topk})",
        example="topk_length values must satisfy 0 <= topk_length <= topk (128)",
        meaning="A length points past the end of its row of indices. The kernel clamps it; this check, made only when "
        "asked for because it waits for the device, tells instead.",
        happens="Lengths of the whole context where those of the selection are meant.",
        fix="topk_length = topk_length.clamp(0, indices.shape[2])",
        provoke=_too_long,
        repair=in_order(change("topk_length", lambda t: t.clamp(0, TOPK)), move_all("home")),
        cases=("P09",),
        context=_interpreter,
    ),
    _record(
        "value_width/d_v",
        error="ArgumentError",
        message="sparse_mla_q8kv8_prefill_fwd only supports d_v=512, got {got}",
        example="sparse_mla_q8kv8_prefill_fwd only supports d_v=512, got 576",
        meaning="The values are the 512 latent channels; the rotary tail takes part in the scores only.",
        happens="The width of q passed for that of the values.",
        fix="d_v = 512",
        provoke=replace("d_v", 576),
        repair=replace("d_v", 512),
    ),
    _record(
        "sink_length/attn_sink",
        error="ArgumentError",
        message="attn_sink requires topk_length to be provided as well",
        example="attn_sink requires topk_length to be provided as well",
        meaning="Sinks are offered together with lengths only.",
        happens="A model with sinks whose rows of indices are all full.",
        fix="topk_length = torch.full((q.shape[0],), indices.shape[2], dtype=torch.int32, device=q.device)",
        provoke=replace("topk_length", None),
        repair=restore("topk_length"),
    ),
    _record(
        "sink_shape/attn_sink@dtype",
        error="ShapeError",
        message="attn_sink must be float32 with shape ({h_q},), got {got}/{dtype}",
        example="attn_sink must be float32 with shape (64,), got (64,)/torch.bfloat16",
        meaning="The kernel reads one four-byte sink per head.",
        happens="Sinks are weights and were loaded in the model's dtype.",
        fix="attn_sink = attn_sink.to(torch.float32)",
        provoke=to_dtype("attn_sink", "bfloat16"),
        repair=restore("attn_sink"),
    ),
    _record(
        "sink_shape/attn_sink@shape",
        error="ShapeError",
        message="attn_sink must be float32 with shape ({h_q},), got {got}/{dtype}",
        example="attn_sink must be float32 with shape (64,), got (16,)/torch.float32",
        meaning="Every head of q has its own sink, the padded heads too.",
        happens="q was padded to 64 heads, its sinks were not.",
        fix="q, attn_sink = pad_q8kv8_heads(q, attn_sink)",
        provoke=change("attn_sink", _narrow(0, 16)),
        repair=restore("attn_sink"),
        cases=("P17",),
    ),
    _not_cuda("attn_sink", "A parameter of a module that was not moved."),
    _elsewhere("attn_sink", "A parameter of a layer that another pipeline stage owns."),
    _not_contiguous("attn_sink", "One column of a [heads, 2] parameter.", _every_second),
)

OUTPUT_RECORDS = (
    *_output_records("out"),
    *_output_records("max_logits"),
    *_output_records("lse"),
    _record(
        "alias/lse",
        error="OverlapError",
        message="out, max_logits and lse must not alias each other",
        example="out, max_logits and lse must not alias each other",
        meaning="Two outputs share memory, though not necessarily their first address, and one overwrites the other.",
        happens="Statistics cut out of one workspace whose offsets were computed for fewer tokens.",
        fix="lse = torch.empty_like(lse)",
        provoke=_share_statistics,
        repair=restore("max_logits", "lse"),
        cases=("P23",),
    ),
    _overlap_record("out", "kv", _kv_in_out, "A workspace that is reused while the cache still lies in it."),
    _overlap_record("max_logits", "q_scale", _scale_in_max_logits, "A scale kept at the start of the workspace."),
    _overlap_record("lse", "attn_sink", _sink_in_lse, "Sinks kept in the first row of the buffer that is written."),
    _record(
        "hardware/q",
        error="HardwareError",
        message="sparse_mla_q8kv8_prefill_fwd needs an FP8-capable GPU (sm_89 or newer), got sm_{major}{minor}",
        example="sparse_mla_q8kv8_prefill_fwd needs an FP8-capable GPU (sm_89 or newer), got sm_80",
        meaning="This GPU has no FP8 matrix units. The call is right; the machine is not.",
        happens="A deployment for H100 that is started on an A100.",
        fix="run on an Ada, Hopper or newer GPU, or dequantise and use a 16-bit attention kernel",
        provoke=_nothing,
        repair=_nothing,
        context=_ampere,
    ),
)

RECORDS = (
    *OPERAND_RECORDS,
    *SIZE_RECORDS,
    *OPTION_RECORDS,
    *_scale_records("q_scale"),
    *_scale_records("kv_scale"),
    *OUTPUT_RECORDS,
)
