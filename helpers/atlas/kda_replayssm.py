"""Records of the ReplaySSM decode of Kimi Delta Attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from helpers.atlas.changes import (
    change,
    contiguous,
    follow,
    in_order,
    move,
    move_all,
    restore,
    strided,
    to_dtype,
)
from helpers.atlas.record import Record, Spec

if TYPE_CHECKING:
    import torch

    from helpers.calls import Call

DECODE = "helion_fused_recurrent_kda_replayssm_decode"
NOTEBOOK = "kda_replayssm"

BATCH, HEADS, VALUE_HEADS, SLOTS = 5, 1, 2, 6
K, V, L = 16, 16, 4
WRITTEN = ("initial_state", "d_cache", "k_cache", "g_cache", "out")


def _sample(device: torch.device, seed: int) -> dict[str, Any]:
    """A full ring, a padding row, an append, a forced flush and an empty ring, in this order.

    Ring entries that are not in use yet hold NaN, and so does ``out``.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    def step_sizes(*shape: int) -> torch.Tensor:
        low, high = math.log(1e-3), math.log(0.1)
        return torch.exp(torch.rand(shape, generator=generator) * (high - low) + low)

    slopes = 1 + 15 * torch.rand(VALUE_HEADS, generator=generator)
    keys = torch.nn.functional.normalize(normal(SLOTS, HEADS, L, K), dim=-1)
    args: dict[str, Any] = {
        "mixed_qkv": normal(BATCH, 2 * HEADS * K + VALUE_HEADS * V).to(torch.bfloat16),
        "a": (normal(BATCH, VALUE_HEADS, K) / 2).to(torch.bfloat16),
        "b": normal(BATCH, VALUE_HEADS).to(torch.bfloat16),
        "A_log": slopes.log(),
        "dt_bias": step_sizes(VALUE_HEADS, K).expm1().log(),
        "scale": K**-0.5,
        "initial_state": normal(SLOTS, VALUE_HEADS, V, K) / 10,
        "d_cache": (normal(SLOTS, VALUE_HEADS, L, V) / 2).to(torch.bfloat16),
        "k_cache": keys.to(torch.bfloat16),
        "g_cache": -slopes[:, None, None] * step_sizes(SLOTS, VALUE_HEADS, L, K),
        "out": torch.full((BATCH, 1, VALUE_HEADS, V), math.nan, dtype=torch.bfloat16),
        "ssm_state_indices": torch.tensor([3, -1, 1, 5, 0]),
        "write_pos": torch.tensor([L - 1, 0, 1, 2, 0], dtype=torch.int32),
        "force_flush": torch.tensor([0, 0, 0, 1, 0], dtype=torch.int32),
        "use_qk_l2norm_in_kernel": True,
        "lower_bound": None,
    }
    for slot, used in zip(args["ssm_state_indices"].tolist(), args["write_pos"].tolist(), strict=True):
        for ring in ("d_cache", "k_cache", "g_cache"):
            args[ring][max(slot, 0), :, used if slot >= 0 else L :] = math.nan
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in args.items()}


def _expected(args: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What the call must write, in float64, not rounded to the outputs' dtypes."""
    from kernels.kda_replayssm.reference import kda_replayssm_decode_reference

    copies = {name: args[name].double().clone() for name in WRITTEN}
    kda_replayssm_decode_reference(**{**args, **copies})
    return copies


SPECS = (
    Spec(
        function=DECODE,
        kernel="kda_replayssm",
        notebook=NOTEBOOK,
        sample=_sample,
        outputs=WRITTEN,
        expected=_expected,
        tolerance=3e-3,
    ),
)


def _reshaped(name: str, *shape: int) -> Callable[[Call], None]:
    return change(name, lambda tensor: tensor.reshape(shape))


def _cut(name: str, dim: int, size: int) -> Callable[[Call], None]:
    return change(name, lambda tensor: tensor.narrow(dim, 0, size))


def _one_row_short(name: str) -> Callable[[Call], None]:
    return change(name, lambda tensor: tensor.narrow(0, 0, tensor.shape[0] - 1))


LAYOUT_RECORDS = (
    Record(
        id="kda_replayssm.a.packed/a@strided",
        function=DECODE,
        error="LayoutError",
        message="KDA `a` must be a contiguous 2D or 3D tensor.",
        example="KDA `a` must be a contiguous 2D or 3D tensor.",
        meaning="The gates of one request are read as HV * K values in a row.",
        happens="A gate projection seen through transpose, or cut out of a wider projection without a copy.",
        fix="a = a.contiguous()",
        provoke=change("a", strided),
        repair=change("a", contiguous),
        cases=("P16",),
    ),
    Record(
        id="kda_replayssm.a.packed/a@rank",
        function=DECODE,
        error="LayoutError",
        message="KDA `a` must be a contiguous 2D or 3D tensor.",
        example="KDA `a` must be a contiguous 2D or 3D tensor.",
        meaning="a is [B, HV * K] or [B, HV, K]; decode has no dim for time.",
        happens="The [batch, time, heads, channels] tensor of the prefill path was passed to decode.",
        fix="a = a.reshape(batch, HV, K)",
        provoke=change("a", lambda a: a.unsqueeze(1)),
        repair=_reshaped("a", BATCH, VALUE_HEADS, K),
    ),
    Record(
        id="kda_replayssm.dt_bias.packed/dt_bias@strided",
        function=DECODE,
        error="LayoutError",
        message="KDA `dt_bias` must be a contiguous 1D or 2D tensor.",
        example="KDA `dt_bias` must be a contiguous 1D or 2D tensor.",
        meaning="The bias is read as HV * K values in a row.",
        happens="A checkpoint that stores the bias as [K, HV], loaded and transposed.",
        fix="dt_bias = dt_bias.contiguous()",
        provoke=change("dt_bias", strided),
        repair=change("dt_bias", contiguous),
    ),
    Record(
        id="kda_replayssm.dt_bias.packed/dt_bias@rank",
        function=DECODE,
        error="LayoutError",
        message="KDA `dt_bias` must be a contiguous 1D or 2D tensor.",
        example="KDA `dt_bias` must be a contiguous 1D or 2D tensor.",
        meaning="dt_bias is [HV * K] or [HV, K].",
        happens="A parameter that kept the leading dims it is broadcast over, [1, 1, HV * K] or [1, HV, K].",
        fix="dt_bias = dt_bias.flatten()",
        provoke=change("dt_bias", lambda bias: bias.unsqueeze(0)),
        repair=change("dt_bias", lambda bias: bias.reshape(-1)),
    ),
    Record(
        id="kda_replayssm.mixed_qkv.rank/mixed_qkv",
        function=DECODE,
        error="RankError",
        message="`mixed_qkv` must be a 2D tensor (got ndim={got}).",
        example="`mixed_qkv` must be a 2D tensor (got ndim=3).",
        meaning="Decode takes one token per request, with q, k and v packed in one row.",
        happens="A time dim of length one left over from prefill.",
        fix="mixed_qkv = mixed_qkv.squeeze(1)",
        provoke=change("mixed_qkv", lambda qkv: qkv.unsqueeze(1)),
        repair=change("mixed_qkv", lambda qkv: qkv.squeeze(1)),
    ),
    Record(
        id="kda_replayssm.mixed_qkv.stride/mixed_qkv",
        function=DECODE,
        error="LayoutError",
        message="`mixed_qkv` must be contiguous in the last dim.",
        example="`mixed_qkv` must be contiguous in the last dim.",
        meaning="The channels of a row lie side by side; the rows themselves may have any stride.",
        happens="The output of a causal convolution that works on [channels, batch], passed transposed.",
        fix="mixed_qkv = mixed_qkv.contiguous()",
        provoke=change("mixed_qkv", strided),
        repair=change("mixed_qkv", contiguous),
        cases=("P16",),
    ),
    Record(
        id="kda_replayssm.gates.rank/b",
        function=DECODE,
        error="RankError",
        message="`a` and `b` must be 2D tensors (got a.ndim={a}, b.ndim={b}).",
        example="`a` and `b` must be 2D tensors (got a.ndim=2, b.ndim=3).",
        meaning="b is [B, HV]. The message also shows a, which has been flattened to two dims by then.",
        happens="b kept a time dim, or a trailing dim of size one.",
        fix="b = b.squeeze(-1)",
        provoke=change("b", lambda b: b.unsqueeze(-1)),
        repair=change("b", lambda b: b.squeeze(-1)),
    ),
    Record(
        id="kda_replayssm.gates.stride/b",
        function=DECODE,
        error="LayoutError",
        message="`a`/`b` must be contiguous in the last dim.",
        example="`a`/`b` must be contiguous in the last dim.",
        meaning="The heads' values of one request lie side by side.",
        happens="b cut from a projection laid out as [HV, batch].",
        fix="b = b.contiguous()",
        provoke=change("b", strided),
        repair=change("b", contiguous),
        cases=("P16",),
    ),
    Record(
        id="kda_replayssm.gates.stride/a",
        function=DECODE,
        error="LayoutError",
        message="`a`/`b` must be contiguous in the last dim.",
        example="`a`/`b` must be contiguous in the last dim.",
        meaning="The stride itself must be 1, also where PyTorch calls a tensor contiguous because the dim has one "
        "element.",
        happens="A gate with a single channel per request, cut out of a wider tensor.",
        fix="a = a.clone(memory_format=torch.contiguous_format)",
        provoke=change("a", lambda a: a.as_strided((BATCH, 1), (1, 7))),
        repair=restore("a"),
    ),
    Record(
        id="kda_replayssm.parameters.rank/A_log",
        function=DECODE,
        error="RankError",
        message="`A_log`/`dt_bias` must be 1D tensors.",
        example="`A_log`/`dt_bias` must be 1D tensors.",
        meaning="A_log has one value per value head. (dt_bias has been flattened by then.)",
        happens="A parameter that kept the dims it is broadcast over, [1, 1, HV, 1].",
        fix="A_log = A_log.flatten()",
        provoke=change("A_log", lambda A_log: A_log.unsqueeze(1)),
        repair=change("A_log", lambda A_log: A_log.reshape(-1)),
    ),
    Record(
        id="kda_replayssm.parameters.stride/A_log",
        function=DECODE,
        error="LayoutError",
        message="`A_log`/`dt_bias` must be contiguous.",
        example="`A_log`/`dt_bias` must be contiguous.",
        meaning="The heads' values lie side by side.",
        happens="One value for all heads, widened with expand, whose stride is 0.",
        fix="A_log = A_log.contiguous()",
        provoke=change("A_log", lambda A_log: A_log.narrow(0, 0, 1).expand(VALUE_HEADS)),
        repair=change("A_log", contiguous),
    ),
    Record(
        id="kda_replayssm.parameters.stride/dt_bias",
        function=DECODE,
        error="LayoutError",
        message="`A_log`/`dt_bias` must be contiguous.",
        example="`A_log`/`dt_bias` must be contiguous.",
        meaning="As for a: the stride itself must be 1, also in a tensor of one element.",
        happens="A bias of one element cut out of a wider parameter.",
        fix="dt_bias = dt_bias.clone(memory_format=torch.contiguous_format)",
        provoke=change("dt_bias", lambda bias: bias.as_strided((1,), (7,))),
        repair=restore("dt_bias"),
    ),
    Record(
        id="kda_replayssm.ssm_state_indices.rank/ssm_state_indices",
        function=DECODE,
        error="RankError",
        message="`ssm_state_indices` must be 1D for packed decode (got ndim={got}).",
        example="`ssm_state_indices` must be 1D for packed decode (got ndim=2).",
        meaning="One slot per request.",
        happens="The [batch, draft tokens] table of speculative decoding was passed to plain decode.",
        fix="ssm_state_indices = ssm_state_indices[:, 0]",
        provoke=change("ssm_state_indices", lambda slots: slots.unsqueeze(1)),
        repair=change("ssm_state_indices", lambda slots: slots.select(1, 0)),
    ),
    Record(
        id="kda_replayssm.out.packed/out",
        function=DECODE,
        error="LayoutError",
        message="`out` must be contiguous.",
        example="`out` must be contiguous.",
        meaning="The output is written as one block. Making a contiguous copy would not help: the caller's tensor "
        "would stay as it was.",
        happens="A view into a larger buffer, or one with heads and channels exchanged.",
        fix="out = mixed_qkv.new_empty(batch, 1, HV, V)",
        provoke=change("out", strided),
        repair=restore("out"),
    ),
)

INPUT_PLACES = (
    ("a", "other", "The gate projection ran on another rank's device."),
    ("b", "other", "The projection of b ran on another rank's device."),
    (
        "A_log",
        "cpu",
        "A plain attribute of the module, not a registered parameter, so module.to(device) left it behind.",
    ),
    ("dt_bias", "cpu", "A plain attribute of the module, so module.to(device) left it behind."),
    ("initial_state", "other", "The pool was allocated on cuda:0 for every rank."),
    ("out", "other", 'Allocated with a bare device="cuda", which is the current device, not the tensors\' one.'),
    ("ssm_state_indices", "cpu", "Slots chosen by the scheduler on the host and never copied over."),
)

DEVICE_RECORDS = (
    *(
        Record(
            id=f"kda_replayssm.inputs.device/{name}",
            function=DECODE,
            error="DeviceError",
            message="All inputs must be on the same device.",
            example="All inputs must be on the same device.",
            meaning=f"One sentence for seven tensors; here {name} is the one on another device than mixed_qkv. The "
            "note below the message names it.",
            happens=happens,
            fix=f"{name} = {name}.to(mixed_qkv.device)",
            provoke=move(name, where),
            repair=follow(name, "mixed_qkv"),
            section="the-error-in-the-wild",
            cases=("P08",),
        )
        for name, where, happens in INPUT_PLACES
    ),
    Record(
        id="kda_replayssm.inputs.device/mixed_qkv",
        function=DECODE,
        error="DeviceError",
        message="All inputs must be on the same device.",
        example="All inputs must be on the same device.",
        meaning="The tensor that the others are compared with is itself the misplaced one. The guard cannot know that, "
        "but the note sees that all others agree.",
        happens="Activations arriving from the previous pipeline stage, still on its device.",
        fix="mixed_qkv = mixed_qkv.to(initial_state.device)",
        provoke=move("mixed_qkv", "other"),
        repair=follow("mixed_qkv", "initial_state"),
        section="the-error-in-the-wild",
        cases=("P08",),
    ),
)

SIZE_RECORDS = (
    *(
        Record(
            id=f"kda_replayssm.batch/{name}",
            function=DECODE,
            error="ShapeError",
            message="Mismatched batch sizes: mixed_qkv.shape[0]={expected}, a.shape[0]={a}, b.shape[0]={b}.",
            example=f"Mismatched batch sizes: mixed_qkv.shape[0]={qkv}, a.shape[0]={a}, b.shape[0]={b}.",
            meaning=meaning,
            happens="One of the three was padded to the captured batch size, the others were not.",
            fix="pad or cut mixed_qkv, a and b to the same requests",
            provoke=_one_row_short(name),
            repair=restore(name),
        )
        for name, qkv, a, b, meaning in (
            (
                "a",
                5,
                4,
                5,
                "a has another number of rows. One that divides evenly among the requests would pass here "
                "and be refused for its columns.",
            ),
            ("b", 5, 5, 4, "b has another number of rows than mixed_qkv."),
            (
                "mixed_qkv",
                4,
                4,
                5,
                "mixed_qkv has a row too few. a is reshaped to mixed_qkv's rows before this check, so "
                "it seems to agree.",
            ),
        )
    ),
    Record(
        id="kda_replayssm.ssm_state_indices.shape/ssm_state_indices",
        function=DECODE,
        error="ShapeError",
        message="`ssm_state_indices` must have shape [B] (got {got}; expected {expected}).",
        example="`ssm_state_indices` must have shape [B] (got (4,); expected (5,)).",
        meaning="Every request needs a slot, padding rows a negative one.",
        happens="The batch was padded for a captured graph, the slots were not.",
        fix="pad ssm_state_indices with -1",
        provoke=_one_row_short("ssm_state_indices"),
        repair=restore("ssm_state_indices"),
        cases=("P13",),
    ),
    Record(
        id="kda_replayssm.initial_state.rank/initial_state",
        function=DECODE,
        error="RankError",
        message="`initial_state` must be a 4D tensor (got ndim={got}).",
        example="`initial_state` must be a 4D tensor (got ndim=3).",
        meaning="The pool is [slots, HV, V, K].",
        happens="One request's state without the slots, or a pool whose state is kept flat.",
        fix="initial_state = initial_state.view(slots, HV, V, K)",
        provoke=change("initial_state", lambda state: state.flatten(2)),
        repair=_reshaped("initial_state", SLOTS, VALUE_HEADS, V, K),
    ),
    Record(
        id="kda_replayssm.initial_state.stride/initial_state",
        function=DECODE,
        error="LayoutError",
        message="`initial_state` must be contiguous in the last dim.",
        example="`initial_state` must be contiguous in the last dim.",
        meaning="The key channels of a state row lie side by side. Slots, heads and rows may have any strides.",
        happens="A pool kept as [slots, HV, K, V] and passed transposed.",
        fix="lay the pool out as [slots, HV, V, K]",
        provoke=change("initial_state", strided),
        repair=restore("initial_state"),
        cases=("P16",),
    ),
    *(
        Record(
            id=f"kda_replayssm.power_of_two/initial_state@{name}",
            function=DECODE,
            error="ShapeError",
            message="Helion KDA decode requires power-of-two key and value head dimensions (got K={K}, V={V}).",
            example="Helion KDA decode requires power-of-two key and value head dimensions "
            f"(got K={sizes[0]}, V={sizes[1]}).",
            meaning="A program holds whole rows of the state, and Triton's tiles have power-of-two sides.",
            happens="A model with head dims such as 96 or 192.",
            fix="pad the head dims with zeros to the next power of two",
            provoke=_cut("initial_state", dim, 12),
            repair=restore("initial_state"),
        )
        for name, dim, sizes in (("K", 3, (12, 16)), ("V", 2, (16, 12)))
    ),
    Record(
        id="kda_replayssm.a.columns/a",
        function=DECODE,
        error="ShapeError",
        message="`a` must have shape [B, HV*K] with HV={HV}, K={K} (got a.shape={got}).",
        example="`a` must have shape [B, HV*K] with HV=2, K=16 (got a.shape=(5, 16)).",
        meaning="KDA has a gate for every key channel of every value head. The shape shown is the flattened one.",
        happens="Gates of one of several heads, or one gate per head as in a gated delta net.",
        fix="pass a as [B, HV, K]",
        provoke=change("a", lambda a: contiguous(a.narrow(1, 0, 1))),
        repair=restore("a"),
    ),
    Record(
        id="kda_replayssm.b.columns/b",
        function=DECODE,
        error="ShapeError",
        message="`b` must have shape [B, HV] with HV={HV} (got b.shape={got}).",
        example="`b` must have shape [B, HV] with HV=2 (got b.shape=(5, 1)).",
        meaning="b has one value for every value head, and their number is taken from initial_state.",
        happens="b was sharded over the ranks, the pool was not, or the other way round.",
        fix="shard b and the pool alike",
        provoke=change("b", lambda b: b.narrow(1, 0, 1)),
        repair=restore("b"),
    ),
    Record(
        id="kda_replayssm.A_log.size/A_log",
        function=DECODE,
        error="ShapeError",
        message="`A_log` must have {expected} elements (got {got}).",
        example="`A_log` must have 2 elements (got 1).",
        meaning="A_log has one value for every value head of this rank.",
        happens="The whole parameter was loaded where the rank's slice belongs, or the other way round.",
        fix="A_log = full_A_log[rank * HV : (rank + 1) * HV]",
        provoke=change("A_log", lambda A_log: A_log.narrow(0, 0, 1)),
        repair=restore("A_log"),
    ),
    Record(
        id="kda_replayssm.dt_bias.size/dt_bias",
        function=DECODE,
        error="ShapeError",
        message="`dt_bias` must have {expected} elements (got {got}).",
        example="`dt_bias` must have 32 elements (got 16).",
        meaning="dt_bias has one value for every key channel of every value head of this rank.",
        happens="The whole parameter was loaded where the rank's slice belongs, or the other way round.",
        fix="dt_bias = full_dt_bias[rank * HV * K : (rank + 1) * HV * K]",
        provoke=change("dt_bias", lambda bias: bias.narrow(0, 0, 1)),
        repair=restore("dt_bias"),
    ),
    Record(
        id="kda_replayssm.out.shape/out",
        function=DECODE,
        error="ShapeError",
        message="`out` must have shape {expected} (got out.shape={got}).",
        example="`out` must have shape (5, 1, 2, 16) (got out.shape=(5, 2, 16)).",
        meaning="The output keeps a time dim of length one.",
        happens="A buffer shaped like the values, without the time dim.",
        fix="out = out.unsqueeze(1)",
        provoke=change("out", lambda out: out.squeeze(1)),
        repair=change("out", lambda out: out.unsqueeze(1)),
    ),
    Record(
        id="kda_replayssm.mixed_qkv.width/mixed_qkv",
        function=DECODE,
        error="ShapeError",
        message="Invalid packed `mixed_qkv` last dim={got} for HV={HV}, V={V}.",
        example="Invalid packed `mixed_qkv` last dim=32 for HV=2, V=16.",
        meaning="A row is q, k, v side by side. After the HV * V columns of v, nothing, or an odd number, is left.",
        happens="Only v was passed, or q and k have different sizes.",
        fix="mixed_qkv = torch.cat((q, k, v), dim=-1)",
        provoke=change("mixed_qkv", lambda qkv: qkv.narrow(1, 0, VALUE_HEADS * V)),
        repair=restore("mixed_qkv"),
    ),
    Record(
        id="kda_replayssm.mixed_qkv.q_size/mixed_qkv",
        function=DECODE,
        error="ShapeError",
        message="Invalid packed Q size {got}: must be divisible by K={K}. "
        "KDA packed decode requires num_q_heads == num_k_heads and head_q_dim == head_k_dim.",
        example="Invalid packed Q size 12: must be divisible by K=16. "
        "KDA packed decode requires num_q_heads == num_k_heads and head_q_dim == head_k_dim.",
        meaning="Half of what v leaves is q, and it does not divide into heads of K channels.",
        happens="q and k with other head dims than the pool, or different ones.",
        fix="pack q and k as H heads of K channels each",
        provoke=change("mixed_qkv", lambda qkv: qkv.narrow(1, 0, VALUE_HEADS * V + 24)),
        repair=restore("mixed_qkv"),
    ),
    Record(
        id="kda_replayssm.mixed_qkv.heads/mixed_qkv",
        function=DECODE,
        error="ShapeError",
        message="Invalid head config inferred from mixed_qkv: H={H}, HV={HV}.",
        example="Invalid head config inferred from mixed_qkv: H=3, HV=2.",
        meaning="Every query head serves the same number of value heads, so HV must be a multiple of H.",
        happens="q and k of all ranks packed with v of one.",
        fix="shard q, k and v alike",
        provoke=change("mixed_qkv", lambda qkv: qkv.repeat(1, 2)),
        repair=restore("mixed_qkv"),
    ),
)

FLAG_RECORDS = (
    Record(
        id="kda_replayssm.write_pos.dtype/write_pos@dtype",
        function=DECODE,
        error="DtypeError",
        message="`write_pos` must be a 1D int32 tensor.",
        example="`write_pos` must be a 1D int32 tensor.",
        meaning="Ring positions are int32.",
        happens="Positions made by torch.tensor or arange, which give int64.",
        fix="write_pos = write_pos.to(torch.int32)",
        provoke=to_dtype("write_pos", "int64"),
        repair=to_dtype("write_pos", "int32"),
    ),
    Record(
        id="kda_replayssm.write_pos.dtype/write_pos@rank",
        function=DECODE,
        error="DtypeError",
        message="`write_pos` must be a 1D int32 tensor.",
        example="`write_pos` must be a 1D int32 tensor.",
        meaning="One ring position per request, in a flat list.",
        happens="Positions gathered with an index that kept its dim.",
        fix="write_pos = write_pos.flatten()",
        provoke=change("write_pos", lambda pos: pos.unsqueeze(1)),
        repair=change("write_pos", lambda pos: pos.reshape(-1)),
    ),
    Record(
        id="kda_replayssm.write_pos.shape/write_pos",
        function=DECODE,
        error="ShapeError",
        message="`write_pos` must have shape {expected}.",
        example="`write_pos` must have shape (5,).",
        meaning="Every row of the batch has a ring position, padding rows any.",
        happens="The batch was padded for a captured graph, the positions were not.",
        fix="pad write_pos with 0",
        provoke=_one_row_short("write_pos"),
        repair=restore("write_pos"),
    ),
    Record(
        id="kda_replayssm.force_flush/force_flush@dtype",
        function=DECODE,
        error="DtypeError",
        message="`force_flush` must be a length-B int32 tensor or None.",
        example="`force_flush` must be a length-B int32 tensor or None.",
        meaning="The flags are int32, not bool.",
        happens="The mask itself was passed.",
        fix="force_flush = force_flush.to(torch.int32)",
        provoke=to_dtype("force_flush", "bool"),
        repair=to_dtype("force_flush", "int32"),
    ),
    Record(
        id="kda_replayssm.force_flush/force_flush@length",
        function=DECODE,
        error="DtypeError",
        message="`force_flush` must be a length-B int32 tensor or None.",
        example="`force_flush` must be a length-B int32 tensor or None.",
        meaning="One flag for every row of the batch.",
        happens="The batch was padded for a captured graph, the flags were not.",
        fix="pad force_flush with 0",
        provoke=_one_row_short("force_flush"),
        repair=restore("force_flush"),
    ),
)

RING_RECORDS = (
    Record(
        id="kda_replayssm.ring_length/d_cache",
        function=DECODE,
        error="ShapeError",
        message="ReplaySSM cache length must be at least 1.",
        example="ReplaySSM cache length must be at least 1.",
        meaning="A ring of one entry flushes at every step; one of none could not hold the step at hand.",
        happens="A configuration that turns replay off by setting its length to 0.",
        fix="allocate the caches with L of 1 or more, or call the kernel without replay",
        provoke=change("d_cache", lambda cache: cache.narrow(2, 0, 0)),
        repair=restore("d_cache"),
    ),
    Record(
        id="kda_replayssm.d_cache.shape/d_cache",
        function=DECODE,
        error="ShapeError",
        message="`d_cache` must have shape [slots, HV, L, V].",
        example="`d_cache` must have shape [slots, HV, L, V].",
        meaning="The ring of updates has a row of V values for every value head and entry.",
        happens="Heads and entries exchanged.",
        fix="d_cache = d_cache.transpose(1, 2)",
        provoke=change("d_cache", lambda cache: cache.transpose(1, 2)),
        repair=change("d_cache", lambda cache: cache.transpose(1, 2)),
    ),
    Record(
        id="kda_replayssm.k_cache.shape/k_cache",
        function=DECODE,
        error="ShapeError",
        message="`k_cache` must have shape [slots, H, L, K].",
        example="`k_cache` must have shape [slots, H, L, K].",
        meaning="Keys are kept once for every query head, not for every value head.",
        happens="With grouped heads, a ring of keys allocated like the other two.",
        fix="allocate k_cache with H heads",
        provoke=change("k_cache", lambda cache: cache.repeat(1, VALUE_HEADS // HEADS, 1, 1)),
        repair=restore("k_cache"),
    ),
    Record(
        id="kda_replayssm.g_cache.shape/g_cache",
        function=DECODE,
        error="ShapeError",
        message="`g_cache` must have shape [slots, HV, L, K].",
        example="`g_cache` must have shape [slots, HV, L, K].",
        meaning="KDA decays every key channel on its own.",
        happens="One decay per head, as in a gated delta net.",
        fix="allocate g_cache with K channels",
        provoke=change("g_cache", lambda cache: cache.narrow(3, 0, 1)),
        repair=restore("g_cache"),
    ),
    Record(
        id="kda_replayssm.g_cache.dtype/g_cache",
        function=DECODE,
        error="DtypeError",
        message="`g_cache` must have dtype torch.float32.",
        example="`g_cache` must have dtype torch.float32.",
        meaning="Log decays are summed over the whole ring before they are exponentiated; in 16 bits the error would "
        "add up.",
        happens="All caches allocated with the model's dtype.",
        fix="allocate g_cache with dtype=torch.float32",
        provoke=to_dtype("g_cache", "bfloat16"),
        repair=restore("g_cache"),
    ),
    Record(
        id="kda_replayssm.ring.device/d_cache",
        function=DECODE,
        error="DeviceError",
        message="ReplaySSM inputs must be on the same device.",
        example="ReplaySSM inputs must be on the same device.",
        meaning="One sentence for four tensors: d_cache, k_cache, g_cache and write_pos. Most often all three "
        "caches are on the CPU while the activations are on the GPU. A note below the message, if the log has it, says "
        "which of the four are elsewhere, and where.",
        happens="Caches built in a unit test with the default device and never moved, or allocated once on cuda:0 for "
        "all ranks.",
        fix="allocate the caches with device=mixed_qkv.device",
        provoke=in_order(move("d_cache", "cpu"), move("k_cache", "cpu"), move("g_cache", "cpu")),
        repair=in_order(*(follow(name, "mixed_qkv") for name in ("d_cache", "k_cache", "g_cache"))),
        section="the-error-in-the-wild",
        seed=1,
        cases=("P05",),
    ),
    *(
        Record(
            id=f"kda_replayssm.ring.device/{name}",
            function=DECODE,
            error="DeviceError",
            message="ReplaySSM inputs must be on the same device.",
            example="ReplaySSM inputs must be on the same device.",
            meaning=f"The same guard with {name} alone on another device.",
            happens=happens,
            fix=f"{name} = {name}.to(mixed_qkv.device)",
            provoke=move(name, where),
            repair=follow(name, "mixed_qkv"),
            section="the-error-in-the-wild",
            cases=("P05", "P08"),
        )
        for name, where, happens in (
            ("k_cache", "other", "The caches were allocated in a loop over ranks, one of them a rank too far."),
            (
                "g_cache",
                "cpu",
                "g_cache, being fp32 unlike the others, was allocated by a line of its own, without device.",
            ),
            ("write_pos", "cpu", "Positions are counted by the scheduler on the host."),
        )
    ),
    Record(
        id="kda_replayssm.force_flush.device/force_flush",
        function=DECODE,
        error="DeviceError",
        message="`force_flush` must be on the same device as the inputs.",
        example="`force_flush` must be on the same device as the inputs.",
        meaning="The flags are read by the kernel, so they must be where it runs.",
        happens="Which requests to flush is decided by the scheduler on the host.",
        fix="force_flush = force_flush.to(mixed_qkv.device)",
        provoke=move("force_flush", "cpu"),
        repair=follow("force_flush", "mixed_qkv"),
        section="the-error-in-the-wild",
    ),
    Record(
        id="kda_replayssm.cuda/mixed_qkv",
        function=DECODE,
        error="DeviceError",
        message="ReplaySSM decode only supports CUDA tensors.",
        example="ReplaySSM decode only supports CUDA tensors.",
        meaning="All tensors agree on a device, but it is the CPU, where there is no kernel to launch.",
        happens="A unit test that builds everything with the default device. To run the kernel on a CPU on purpose, "
        "opt in to Triton's interpreter: with kernels.interpreter(): ...",
        fix="move all tensors to the GPU, or opt in to the interpreter",
        provoke=move_all("cpu"),
        repair=move_all("home"),
        cases=("P05",),
    ),
    *(
        Record(
            id=f"kda_replayssm.slots/{name}",
            function=DECODE,
            error="ShapeError",
            message="`{argument}` must have {expected} slots like `initial_state` (got {got}).",
            example=f"`{name}` must have 6 slots like `initial_state` (got 5).",
            meaning="A slot is one request's state and ring together. With fewer slots in a cache, a valid slot of the "
            "pool would reach beyond its end.",
            happens="The pool has a slot for padding that was not counted when the caches were allocated.",
            fix="allocate the caches with initial_state.shape[0] slots",
            provoke=_one_row_short(name),
            repair=restore(name),
        )
        for name in ("d_cache", "k_cache", "g_cache")
    ),
    Record(
        id="kda_replayssm.ssm_state_indices.dtype/ssm_state_indices",
        function=DECODE,
        error="DtypeError",
        message="`ssm_state_indices` must have an integer dtype, got {got}.",
        example="`ssm_state_indices` must have an integer dtype, got torch.float32.",
        meaning="A slot is a whole number.",
        happens="Slots that went through arithmetic with a float.",
        fix="ssm_state_indices = ssm_state_indices.to(torch.int64)",
        provoke=to_dtype("ssm_state_indices", "float32"),
        repair=to_dtype("ssm_state_indices", "int64"),
    ),
    *(
        Record(
            id=f"kda_replayssm.ring.dtype/{name}",
            function=DECODE,
            error="DtypeError",
            message="`{argument}` must have a floating dtype, got {got}.",
            example=f"`{name}` must have a floating dtype, got torch.int8.",
            meaning="The ring is kept in a floating dtype, usually that of the activations; there is no scale for "
            "integers.",
            happens="A cache configured for integer quantisation like the KV cache beside it.",
            fix=f"allocate {name} with dtype=mixed_qkv.dtype",
            provoke=to_dtype(name, "int8"),
            repair=restore(name),
        )
        for name in ("d_cache", "k_cache")
    ),
)

RECORDS = (*LAYOUT_RECORDS, *DEVICE_RECORDS, *SIZE_RECORDS, *FLAG_RECORDS, *RING_RECORDS)
