"""Records of the fused Mamba state scatter and its two companions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from helpers.atlas.changes import change, contiguous, follow, move, move_all, replace, restore, strided, to_dtype
from helpers.atlas.record import Record, Spec

if TYPE_CHECKING:
    import torch

    from helpers.calls import Call

STATE = "fused_mamba_state_scatter_with_mask"
CONV = "fused_conv_window_scatter_with_mask"
VERIFY = "scatter_mamba_states_after_mtp_verify"
NOTEBOOK = "mamba_scatter"

LAYERS, SLOTS, REQUESTS, STEPS = 2, 6, 4, 3


@dataclass(frozen=True)
class Caches:
    """A cache object of the smallest kind that the companion function accepts."""

    temporal: torch.Tensor
    intermediate_ssm: torch.Tensor
    conv: list[torch.Tensor]
    intermediate_conv_window: list[torch.Tensor]


def _random(shape: tuple[int, ...], device: torch.device, seed: int) -> torch.Tensor:
    import torch

    # Drawn on the CPU, so that every machine sees the same numbers.
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def _indices(device: torch.device, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    generator = torch.Generator().manual_seed(seed)
    slots = torch.randperm(SLOTS, generator=generator)[:REQUESTS]
    steps = torch.randint(0, STEPS, (REQUESTS,), generator=generator)
    steps[1] = -1  # one request accepted no draft token
    return slots.to(device), steps.to(device)


def _windows(device: torch.device, seed: int, dim: int = 4, window: int = 3) -> torch.Tensor:
    """Overlapping windows [layers, requests, steps, dim, K-1] over [layers, requests, dim, steps + K - 2]."""
    base = _random((LAYERS, REQUESTS, dim, STEPS + window - 1), device, seed)
    layer, request, channel, time = base.stride()
    return base.as_strided((LAYERS, REQUESTS, STEPS, dim, window), (layer, request, time, channel, time))


def _sample_state(device: torch.device, seed: int) -> dict[str, Any]:
    slots, steps = _indices(device, seed)
    return {
        "dst": _random((LAYERS, SLOTS, 2, 5), device, seed),
        "src": _random((LAYERS, REQUESTS, STEPS, 2, 5), device, seed + 1),
        "dst_indices_raw": slots,
        "step_indices_raw": steps,
    }


def _sample_conv(device: torch.device, seed: int) -> dict[str, Any]:
    slots, steps = _indices(device, seed)
    return {
        "dst": _random((LAYERS, SLOTS, 4, 3), device, seed),
        "src": _windows(device, seed + 1),
        "dst_indices_raw": slots,
        "step_indices_raw": steps,
    }


def _sample_verify(device: torch.device, seed: int) -> dict[str, Any]:
    slots, steps = _indices(device, seed)
    state, conv = _sample_state(device, seed), _sample_conv(device, seed)
    return {
        "mamba_caches": Caches(state["dst"], state["src"], [conv["dst"]], [conv["src"]]),
        "state_indices_tensor": slots,
        "last_correct_step_indices": steps,
        "mamba_track_indices": slots.flip(0),
        "mamba_steps_to_track": steps,
    }


def _expected_scatter(args: dict[str, Any]) -> dict[str, torch.Tensor]:
    from kernels.mamba_scatter.reference import mamba_state_scatter_reference

    dst = args["dst"].clone()
    mamba_state_scatter_reference(dst, args["src"], args["dst_indices_raw"], args["step_indices_raw"])
    return {"dst": dst}


def _expected_verify(args: dict[str, Any]) -> dict[str, torch.Tensor]:
    from kernels.mamba_scatter.reference import scatter_after_verify_reference

    caches = args["mamba_caches"]
    copy = Caches(
        caches.temporal.clone(),
        caches.intermediate_ssm,
        [pool.clone() for pool in caches.conv],
        caches.intermediate_conv_window,
    )
    scatter_after_verify_reference(copy, *list(args.values())[1:])
    return {"mamba_caches.temporal": copy.temporal, "mamba_caches.conv.0": copy.conv[0]}


SPECS = (
    Spec(
        function=STATE,
        kernel="mamba_scatter",
        notebook=NOTEBOOK,
        sample=_sample_state,
        outputs=("dst",),
        expected=_expected_scatter,
    ),
    Spec(
        function=CONV,
        kernel="mamba_scatter",
        notebook=NOTEBOOK,
        sample=_sample_conv,
        outputs=("dst",),
        expected=_expected_scatter,
    ),
    Spec(
        function=VERIFY,
        kernel="mamba_scatter",
        notebook=NOTEBOOK,
        sample=_sample_verify,
        outputs=("mamba_caches.temporal", "mamba_caches.conv.0"),
        expected=_expected_verify,
    ),
)


def _repeat_requests(call: Call) -> None:
    for name in ("dst_indices_raw", "step_indices_raw"):
        call[name] = call[name].repeat(2)


def _like_dst(call: Call) -> None:
    dst, src = call["dst"], call["src"]
    call["src"] = src.reshape(*src.shape[:3], *dst.shape[2:])


STATE_RECORDS = (
    Record(
        id="mamba_scatter.state.device/src",
        function=STATE,
        error="DeviceError",
        message="dst and src must be on the same device. dst.device={dst.device!r} src.device={src.device!r}",
        example="dst and src must be on the same device. "
        "dst.device=device(type='cuda', index=0) src.device=device(type='cuda', index=1)",
        meaning="The pool and the per-step scratch live on two devices. The kernel runs on one of them and would "
        "follow a pointer into memory of the other.",
        happens="The verification step ran on another rank's device than the one that owns the pool, or the scratch "
        "was built on the CPU in a test.",
        fix="src = src.to(dst.device), or better: allocate the scratch with device=dst.device",
        provoke=move("src", "other"),
        repair=follow("src", "dst"),
        section="the-error-in-the-wild",
        seed=3,
        cases=("P01", "P03"),
    ),
    Record(
        id="mamba_scatter.state.device/dst",
        function=STATE,
        error="DeviceError",
        message="dst and src must be on the same device. dst.device={dst.device!r} src.device={src.device!r}",
        example="dst and src must be on the same device. "
        "dst.device=device(type='cpu') src.device=device(type='cuda', index=0)",
        meaning="The pool is the odd one out: everything else is together on another device.",
        happens="A pool built with torch.zeros(...) and never moved from the CPU, or a device told by another rank.",
        fix="allocate the pool with device=src.device",
        provoke=move("dst", "cpu"),
        repair=follow("dst", "src"),
        section="the-error-in-the-wild",
    ),
    Record(
        id="mamba_scatter.state.cuda/dst",
        function=STATE,
        error="DeviceError",
        message="fused_mamba_state_scatter_with_mask only supports CUDA tensors.",
        example="fused_mamba_state_scatter_with_mask only supports CUDA tensors.",
        meaning="All tensors agree on a device, but it is the CPU, where there is no kernel to launch.",
        happens="A unit test that builds everything with the default device. To run the kernel on a CPU on purpose, "
        "opt in to Triton's interpreter: with kernels.interpreter(): ...",
        fix="move all four tensors to the GPU, or opt in to the interpreter",
        provoke=move_all("cpu"),
        repair=move_all("home"),
    ),
    Record(
        id="mamba_scatter.state.rank/dst",
        function=STATE,
        error="RankError",
        message="Unexpected tensor ranks: dst.ndim={dst.ndim!r} src.ndim={src.ndim!r}",
        example="Unexpected tensor ranks: dst.ndim=1 src.ndim=5",
        meaning="The pool needs at least the dims [layers, slots].",
        happens="A pool that was flattened, or one layer's slice of it passed instead of the whole.",
        fix="pass the pool as [layers, slots, *state]",
        provoke=change("dst", lambda dst: dst.reshape(-1)),
        repair=change("dst", lambda dst: dst.reshape(LAYERS, SLOTS, 2, 5)),
    ),
    Record(
        id="mamba_scatter.state.rank/src",
        function=STATE,
        error="RankError",
        message="Unexpected tensor ranks: dst.ndim={dst.ndim!r} src.ndim={src.ndim!r}",
        example="Unexpected tensor ranks: dst.ndim=4 src.ndim=2",
        meaning="The scratch needs at least the dims [layers, requests, steps].",
        happens="A scratch whose requests and steps were merged into one dim.",
        fix="pass the scratch as [layers, requests, steps, *state]",
        provoke=change("src", lambda src: src.reshape(LAYERS, -1)),
        repair=change("src", lambda src: src.reshape(LAYERS, REQUESTS, STEPS, 2, 5)),
    ),
    Record(
        id="mamba_scatter.state.layers/src",
        function=STATE,
        error="ShapeError",
        message="Layer dimension mismatch: dst.shape[0]={dst.shape[0]!r} vs src.shape[0]={src.shape[0]!r}",
        example="Layer dimension mismatch: dst.shape[0]=2 vs src.shape[0]=1",
        meaning="One call serves all layers at once, so both tensors must have the same ones.",
        happens="Pipeline-parallel code that slices the layers of one of the two for its stage, not of the other.",
        fix="slice both to the stage's layers, or neither",
        provoke=change("src", lambda src: src.narrow(0, 0, 1)),
        repair=restore("src"),
    ),
    Record(
        id="mamba_scatter.state.trailing/src",
        function=STATE,
        error="ShapeError",
        message="Trailing dims mismatch: dst.shape[2:]={expected!r} vs src.shape[3:]={got!r}",
        example="Trailing dims mismatch: dst.shape[2:]=torch.Size([2, 5]) vs src.shape[3:]=torch.Size([10])",
        meaning="A state in the scratch has another shape than a slot of the pool.",
        happens="One side keeps the state flat, or tensor parallelism divides the heads of only one of them.",
        fix="src = src.reshape(*src.shape[:3], *dst.shape[2:])",
        provoke=change("src", lambda src: src.reshape(LAYERS, REQUESTS, STEPS, 10)),
        repair=_like_dst,
    ),
    Record(
        id="mamba_scatter.state.packed/dst",
        function=STATE,
        error="LayoutError",
        message="fused_mamba_state_scatter_with_mask: dst entry dims (dims 2..{last}) must be contiguous; "
        "got shape={shape} strides={got}",
        example="fused_mamba_state_scatter_with_mask: dst entry dims (dims 2..3) must be contiguous; "
        "got shape=(2, 6, 2, 5) strides=(60, 10, 1, 2)",
        meaning="The kernel copies a state as one run of memory, so the state dims of the pool must be packed. The "
        "first two dims may have any strides.",
        happens="A pool seen through transpose or permute of its state dims.",
        fix="lay the pool out in the order in which it is used",
        provoke=change("dst", strided),
        repair=change("dst", contiguous),
        cases=("P16",),
    ),
    Record(
        id="mamba_scatter.state.src_contiguous/src",
        function=STATE,
        error="LayoutError",
        message="src tensor must be contiguous",
        example="src tensor must be contiguous",
        meaning="The scratch is read as one block of memory.",
        happens="A scratch that is a slice or a transposed view of a larger buffer.",
        fix="src = src.contiguous()",
        provoke=change("src", strided),
        repair=change("src", contiguous),
        cases=("P16",),
    ),
)

CONV_RECORDS = (
    Record(
        id="mamba_scatter.conv.device/src",
        function=CONV,
        error="DeviceError",
        message="fused_conv_window_scatter_with_mask requires dst and src to be CUDA tensors on the same device "
        "(dst.device={dst.device!r}, src.device={src.device!r}).",
        example="fused_conv_window_scatter_with_mask requires dst and src to be CUDA tensors on the same device "
        "(dst.device=device(type='cuda', index=0), src.device=device(type='cuda', index=1)).",
        meaning="Pool and windows live on two devices.",
        happens="As for the states: the windows belong to another rank, or to the CPU.",
        fix="take the windows from a buffer that was allocated with device=dst.device",
        provoke=move("src", "other"),
        repair=follow("src", "dst"),
    ),
    Record(
        id="mamba_scatter.conv.device/dst",
        function=CONV,
        error="DeviceError",
        message="fused_conv_window_scatter_with_mask requires dst and src to be CUDA tensors on the same device "
        "(dst.device={dst.device!r}, src.device={src.device!r}).",
        example="fused_conv_window_scatter_with_mask requires dst and src to be CUDA tensors on the same device "
        "(dst.device=device(type='cpu'), src.device=device(type='cpu')).",
        meaning="Both agree, but on the CPU. One sentence covers both faults here; read the two devices it prints.",
        happens="A unit test with the default device.",
        fix="move all tensors to the GPU, or opt in to the interpreter",
        provoke=move_all("cpu"),
        repair=move_all("home"),
    ),
    Record(
        id="mamba_scatter.conv.rank/dst",
        function=CONV,
        error="RankError",
        message="Unexpected ranks: dst.ndim={dst.ndim!r} (want 4) src.ndim={src.ndim!r} (want 5)",
        example="Unexpected ranks: dst.ndim=3 (want 4) src.ndim=5 (want 5)",
        meaning="The pool is [layers, slots, dim, K-1].",
        happens="A pool with window and channels flattened.",
        fix="dst = dst.reshape(layers, slots, dim, K - 1)",
        provoke=change("dst", lambda dst: dst.flatten(2)),
        repair=change("dst", lambda dst: dst.reshape(LAYERS, SLOTS, 4, 3)),
    ),
    Record(
        id="mamba_scatter.conv.rank/src",
        function=CONV,
        error="RankError",
        message="Unexpected ranks: dst.ndim={dst.ndim!r} (want 4) src.ndim={src.ndim!r} (want 5)",
        example="Unexpected ranks: dst.ndim=4 (want 4) src.ndim=4 (want 5)",
        meaning="The windows are [layers, requests, steps, dim, K-1].",
        happens="The buffer itself was passed, [layers, requests, dim, steps + K - 2], not the view of its windows.",
        fix="pass the as_strided view that cuts one window per step",
        provoke=change("src", lambda src: src.select(2, 0)),
        repair=restore("src"),
    ),
    Record(
        id="mamba_scatter.conv.layers/src",
        function=CONV,
        error="ShapeError",
        message="Layer dim mismatch: dst.shape[0]={dst.shape[0]!r} vs src.shape[0]={src.shape[0]!r}",
        example="Layer dim mismatch: dst.shape[0]=2 vs src.shape[0]=1",
        meaning="One call serves all layers at once.",
        happens="Layers of one of the two were sliced for a pipeline stage.",
        fix="slice both to the stage's layers, or neither",
        provoke=change("src", lambda src: src.narrow(0, 0, 1)),
        repair=restore("src"),
    ),
    Record(
        id="mamba_scatter.conv.window/src",
        function=CONV,
        error="ShapeError",
        message="Window dims mismatch: dst.shape[2:]={expected!r} vs src.shape[3:]={got!r}",
        example="Window dims mismatch: dst.shape[2:]=torch.Size([4, 3]) vs src.shape[3:]=torch.Size([4, 2])",
        meaning="A window has another size than a slot of the pool.",
        happens="The kernel width K counted with, instead of without, the current input: windows hold K - 1 of them.",
        fix="cut windows of K - 1 inputs",
        provoke=change("src", lambda src: src.narrow(4, 0, 2)),
        repair=restore("src"),
    ),
    Record(
        id="mamba_scatter.conv.packed/dst",
        function=CONV,
        error="LayoutError",
        message="fused_conv_window_scatter_with_mask: dst entry dims (dims 2..{last}) must be contiguous; "
        "got shape={shape} strides={got}",
        example="fused_conv_window_scatter_with_mask: dst entry dims (dims 2..3) must be contiguous; "
        "got shape=(2, 6, 4, 3) strides=(72, 12, 1, 4)",
        meaning="A slot of the pool is written as one run of memory. The windows, in contrast, may overlap.",
        happens="A pool kept as [.., K-1, dim] and passed transposed.",
        fix="lay the pool out as [layers, slots, dim, K-1]",
        provoke=change("dst", strided),
        repair=change("dst", contiguous),
        cases=("P16",),
    ),
)


def _index_records(function: str, suffix: str = "") -> tuple[Record, ...]:
    """Records of the guards on the two index tensors, which the two scatters share."""
    both = ("dst_indices_raw", "step_indices_raw")
    shapes = {"dst_indices_raw": ("[4, 1]", "[4]"), "step_indices_raw": ("[4]", "[4, 1]")}
    found = [
        Record(
            id=f"mamba_scatter.index.rank/{name}{suffix}",
            function=function,
            error="RankError",
            message="indices must be 1D: dst_indices_raw.shape={slots.shape!r} step_indices_raw.shape={steps.shape!r}",
            example=f"indices must be 1D: dst_indices_raw.shape=torch.Size({shapes[name][0]}) "
            f"step_indices_raw.shape=torch.Size({shapes[name][1]})",
            meaning="Slots and steps are flat lists, one entry per request.",
            happens="An index that kept a dim of size one from the sampler or from gather.",
            fix=f"{name} = {name}.flatten()",
            provoke=change(name, lambda tensor: tensor.unsqueeze(1)),
            repair=change(name, lambda tensor: tensor.flatten()),
        )
        for name in both
    ]
    found.append(
        Record(
            id=f"mamba_scatter.index.length/step_indices_raw{suffix}",
            function=function,
            error="ShapeError",
            message="indices length mismatch: dst_indices_raw.shape[0]={expected!r} vs "
            "step_indices_raw.shape[0]={got!r}",
            example="indices length mismatch: dst_indices_raw.shape[0]=4 vs step_indices_raw.shape[0]=3",
            meaning="Every request needs one slot and one step.",
            happens="One of the lists was padded to the captured batch size, the other was not.",
            fix="pad or cut both to the same requests",
            provoke=change("step_indices_raw", lambda steps: steps.narrow(0, 0, 3)),
            repair=restore("step_indices_raw"),
        )
    )
    found += [
        Record(
            id=f"mamba_scatter.index.device/{name}{suffix}",
            function=function,
            error="DeviceError",
            message="{argument} must be on dst's device {expected}, got {got}",
            example=f"{name} must be on dst's device cuda:0, got cpu",
            meaning="An index list stayed behind while pool and scratch are on the GPU. Triton itself would only say "
            "that some pointer argument cannot be accessed.",
            happens="Indices made by the scheduler on the host, or built with torch.tensor([...]) without a device.",
            fix=f"{name} = {name}.to(dst.device)",
            provoke=move(name, "cpu"),
            repair=follow(name, "dst"),
            cases=("P02",),
        )
        for name in both
    ]
    found += [
        Record(
            id=f"mamba_scatter.index.dtype/{name}{suffix}",
            function=function,
            error="DtypeError",
            message="{argument} must have an integer dtype, got {got}",
            example=f"{name} must have an integer dtype, got torch.{wrong}",
            meaning="An index is a whole number. A bool is a mask, not an index, and is refused too.",
            happens=how,
            fix=f"{name} = {name}.to(torch.int64)",
            provoke=to_dtype(name, wrong),
            repair=restore(name),
        )
        for name, wrong, how in (
            ("dst_indices_raw", "float32", "Indices that went through arithmetic with a float."),
            ("step_indices_raw", "bool", "The mask of accepted requests was passed instead of their steps."),
        )
    ]
    found.append(
        Record(
            id=f"mamba_scatter.index.requests/step_indices_raw{suffix}",
            function=function,
            error="ShapeError",
            message="step_indices_raw has {got} requests but src holds only {expected}",
            example="step_indices_raw has 8 requests but src holds only 4",
            meaning="Request i reads row i of the scratch, so there cannot be more requests than rows.",
            happens="Indices padded to a captured batch size, with a scratch of the real one.",
            fix="cut the indices to the scratch's requests",
            provoke=_repeat_requests,
            repair=restore(*both),
        )
    )
    return tuple(found)


VERIFY_RECORDS = (
    Record(
        id="mamba_scatter.cache.windows/mamba_caches",
        function=VERIFY,
        error="ShapeError",
        message="mamba_caches has {expected} conv pools but {got} intermediate conv windows",
        example="mamba_caches has 2 conv pools but 1 intermediate conv windows",
        meaning="Every conv pool needs the windows that were kept for it during verification.",
        happens="A model with several convolutions per layer whose scratch was made for one of them.",
        fix="append one entry to intermediate_conv_window for every pool in conv",
        provoke=change("mamba_caches.conv", lambda pools: [*pools, *pools]),
        repair=change("mamba_caches.conv", lambda pools: [*pools][:1]),
    ),
    Record(
        id="mamba_scatter.cache.tracking/mamba_steps_to_track",
        function=VERIFY,
        error="ArgumentError",
        message="mamba_track_indices and mamba_steps_to_track must be given together",
        example="mamba_track_indices and mamba_steps_to_track must be given together",
        meaning="Slots to track without steps to store there, or the other way round, cannot be meant.",
        happens="One of the two was left None by a code path without prefix caching.",
        fix="pass both, or neither",
        provoke=replace("mamba_steps_to_track", None),
        repair=restore("mamba_steps_to_track"),
    ),
    Record(
        id="mamba_scatter.cache.tracking/mamba_track_indices",
        function=VERIFY,
        error="ArgumentError",
        message="mamba_track_indices and mamba_steps_to_track must be given together",
        example="mamba_track_indices and mamba_steps_to_track must be given together",
        meaning="The same guard with the slots missing.",
        happens="One of the two was left None by a code path without prefix caching.",
        fix="pass both, or neither",
        provoke=replace("mamba_track_indices", None),
        repair=restore("mamba_track_indices"),
    ),
)

RECORDS = (
    *STATE_RECORDS,
    *_index_records(STATE),
    *CONV_RECORDS,
    *_index_records(CONV, "@conv"),
    *VERIFY_RECORDS,
)
