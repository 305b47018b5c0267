"""Records of the kv-canary plan, its two plans, its reference, and the scatter of request tokens."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from helpers.atlas.changes import change, contiguous, follow, in_order, move, replace, restore, strided, to_dtype
from helpers.atlas.record import Record, Spec

if TYPE_CHECKING:
    import torch

    from helpers.atlas.changes import Change
    from helpers.calls import Call

PLAN = "launch_canary_plan_kernels"
REFERENCE = "launch_canary_plan_kernels_torch_reference"
SCATTER = "launch_scatter_req_token_ids_kernel"
VERIFY_PLAN = "VerifyPlan.allocate"
WRITE_PLAN = "WritePlan.allocate"
NOTEBOOK = "kv_canary"

REQUESTS, MAX_REQS, MAX_LEN, SLOTS = 4, 6, 12, 73
VERIFY_CAPACITY, WRITE_CAPACITY = 32, 6
POOL_ROWS, POOL_WIDTH = 6, 5

VERIFY_FIELDS = (
    "verify_slot_indices",
    "verify_expected_tokens",
    "verify_expected_positions",
    "verify_prev_slot_indices",
    "verify_num_valid",
    "enable",
)
WRITE_FIELDS = ("write_offsets", "write_seed_slot_indices", "write_num_valid_reqs")
NEW_VERIFY_PLAN = "verify_plan_out = VerifyPlan.allocate(verify_capacity=verify_capacity, device=req_to_token.device)"
NEW_WRITE_PLAN = "write_plan_out = WritePlan.allocate(write_req_capacity=max_running, device=req_to_token.device)"
OUTPUTS = (*(f"verify_plan_out.{name}" for name in VERIFY_FIELDS), *(f"write_plan_out.{name}" for name in WRITE_FIELDS))


def _poisoned(plan: Any) -> Any:
    """The plan with every field full of a value that no plan contains, so that a missing write is seen."""
    for item in dataclasses.fields(plan):
        getattr(plan, item.name).fill_(-77)
    return plan


def _sample_plan(device: torch.device, seed: int) -> dict[str, Any]:
    import torch

    from kernels import VerifyPlan, WritePlan

    # Drawn on the CPU, so that every machine sees the same numbers.
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        "req_pool_indices": torch.tensor([3, 0, 5, 1]),  # the second row is padding
        "prefix_lens": torch.tensor([7, 4, 12, 3]),
        "extend_seq_lens": torch.tensor([1, 1, 4, 0]),
        "req_to_token": torch.randperm(SLOTS - 1, generator=generator).view(MAX_REQS, MAX_LEN).to(torch.int32),
        "full_to_swa_index_mapping": torch.randperm(SLOTS, generator=generator),
        "req_to_verify_expected_tokens": torch.randint(0, 1000, (MAX_REQS, MAX_LEN), generator=generator).int(),
        "req_to_verify_expected_tokens_valid_lens": torch.tensor([7, 4, 10, 3]),
    }
    arguments = {
        "verify_plan_out": _poisoned(VerifyPlan.allocate(verify_capacity=VERIFY_CAPACITY, device=device)),
        "write_plan_out": _poisoned(WritePlan.allocate(write_req_capacity=WRITE_CAPACITY, device=device)),
        **{name: tensor.to(device) for name, tensor in tensors.items()},
        "swa_window_size": 5,
        "verify_capacity": VERIFY_CAPACITY,
        "kv_token_id_vs_position_offset": 0,
    }
    order = (
        "verify_plan_out",
        "write_plan_out",
        "req_pool_indices",
        "prefix_lens",
        "extend_seq_lens",
        "req_to_token",
        "swa_window_size",
        "full_to_swa_index_mapping",
        "verify_capacity",
        "req_to_verify_expected_tokens",
        "req_to_verify_expected_tokens_valid_lens",
        "kv_token_id_vs_position_offset",
    )
    return {name: arguments[name] for name in order}


def _sample_scatter(device: torch.device, seed: int) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(seed)
    return {
        "flat_in": torch.randint(0, 1000, (11,), generator=generator).to(device),
        "offsets": torch.tensor([0, 3, 3, 11]).to(device),  # one request has no tokens, one more than fit
        "req_pool_indices": torch.tensor([4, 1, 2]).to(device),
        "pool_out": torch.full((POOL_ROWS, POOL_WIDTH), -77, dtype=torch.int32, device=device),
    }


def _expected_plan(args: dict[str, Any]) -> dict[str, torch.Tensor]:
    from kernels import launch_canary_plan_kernels_torch_reference

    plans = {name: _copied(args[name]) for name in ("verify_plan_out", "write_plan_out")}
    launch_canary_plan_kernels_torch_reference(**{**args, **plans})
    return {name: getattr(plans[name.partition(".")[0]], name.partition(".")[2]) for name in OUTPUTS}


def _copied(plan: Any) -> Any:
    return dataclasses.replace(plan, **{f.name: getattr(plan, f.name).clone() for f in dataclasses.fields(plan)})


def _expected_scatter(args: dict[str, Any]) -> dict[str, torch.Tensor]:
    from kernels import launch_scatter_req_token_ids_kernel_torch_reference

    pool = args["pool_out"].clone()
    launch_scatter_req_token_ids_kernel_torch_reference(**{**args, "pool_out": pool})
    return {"pool_out": pool}


def _expected_verify_plan(args: dict[str, Any]) -> dict[str, torch.Tensor]:
    import torch

    entries = {f"return.{name}": torch.zeros(args["verify_capacity"], dtype=torch.int64) for name in VERIFY_FIELDS[:4]}
    return {
        **entries,
        "return.verify_num_valid": torch.zeros(1, dtype=torch.int32),
        "return.enable": torch.ones(1, dtype=torch.int32),
    }


def _expected_write_plan(args: dict[str, Any]) -> dict[str, torch.Tensor]:
    import torch

    capacity = args["write_req_capacity"]
    return {
        "return.write_offsets": torch.zeros(capacity + 1, dtype=torch.int64),
        "return.write_seed_slot_indices": torch.zeros(capacity, dtype=torch.int64),
        "return.write_num_valid_reqs": torch.zeros(1, dtype=torch.int32),
    }


SPECS = (
    Spec(
        function=PLAN,
        kernel="kv_canary",
        notebook=NOTEBOOK,
        sample=_sample_plan,
        outputs=OUTPUTS,
        expected=_expected_plan,
    ),
    Spec(
        function=REFERENCE,
        kernel="kv_canary",
        notebook=NOTEBOOK,
        sample=_sample_plan,
        outputs=OUTPUTS,
        expected=_expected_plan,
    ),
    Spec(
        function=SCATTER,
        kernel="kv_canary",
        notebook=NOTEBOOK,
        sample=_sample_scatter,
        outputs=("pool_out",),
        expected=_expected_scatter,
    ),
    Spec(
        function=VERIFY_PLAN,
        kernel="kv_canary",
        notebook=NOTEBOOK,
        sample=lambda device, seed: {"verify_capacity": VERIFY_CAPACITY, "device": device},
        outputs=tuple(f"return.{name}" for name in VERIFY_FIELDS),
        expected=_expected_verify_plan,
    ),
    Spec(
        function=WRITE_PLAN,
        kernel="kv_canary",
        notebook=NOTEBOOK,
        sample=lambda device, seed: {"write_req_capacity": WRITE_CAPACITY, "device": device},
        outputs=tuple(f"return.{name}" for name in WRITE_FIELDS),
        expected=_expected_write_plan,
    ),
)


@dataclasses.dataclass(frozen=True)
class _Tensor:
    """A tensor of the plan's call, and what its records say about it.

    Attributes:
        argument: as the caller passes it.
        name: as messages call it.
        dtype: what it must be.
        shape: in the sample call.
        role: what it holds.
        source: how it comes to be on another device, of another dtype or shape.
        wrong: the dtype that it has by mistake.
    """

    argument: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    role: str
    source: str
    wrong: str

    @property
    def is_output(self) -> bool:
        return "." in self.argument

    @property
    def mend(self) -> str:
        """How to get a right one, in words."""
        if self.argument.startswith("verify_plan_out"):
            return NEW_VERIFY_PLAN
        return NEW_WRITE_PLAN

    def restored(self) -> Change:
        return restore(self.argument.partition(".")[0])


_HOST = "Often the scheduler: it keeps its batch in lists and tensors on the host, and handed this one over as it was."
_COUNTER = "A plan put together by hand, whose counter came from a Python number."

INPUTS = (
    _Tensor(
        "req_pool_indices",
        "req_pool_indices",
        "int64",
        (REQUESTS,),
        "the row of each request in the request pool",
        _HOST,
        "int32",
    ),
    _Tensor(
        "prefix_lens",
        "prefix_lens",
        "int64",
        (REQUESTS,),
        "how many positions of each request are in the cache already",
        "Lengths are counted by the scheduler, often in int32 and on the host.",
        "int32",
    ),
    _Tensor(
        "extend_seq_lens",
        "extend_seq_lens",
        "int64",
        (REQUESTS,),
        "how many positions of each request the step writes",
        "A decode step has no such list, so one of ones is built beside it, with default device or dtype.",
        "int32",
    ),
    _Tensor(
        "req_to_token",
        "req_to_token",
        "int32",
        (MAX_REQS, MAX_LEN),
        "the slot of every position of every request",
        "The table of another worker, or a copy of it that a test made with torch.arange.",
        "int64",
    ),
    _Tensor(
        "full_to_swa_index_mapping",
        "lut_tensor",
        "int64",
        (SLOTS,),
        "the sliding-window slot of every slot",
        "The mapping belongs to the allocator of the sliding-window pool, which was set up apart from the rest.",
        "int32",
    ),
)
OUTPUT_TENSORS = (
    _Tensor(
        "write_plan_out.write_offsets",
        "out_write_offsets",
        "int64",
        (WRITE_CAPACITY + 1,),
        "where each request's new links start",
        "A plan put together by hand instead of by WritePlan.allocate.",
        "int32",
    ),
    _Tensor(
        "write_plan_out.write_seed_slot_indices",
        "out_write_seed_slot_indices",
        "int64",
        (WRITE_CAPACITY,),
        "the slot that each request's new links continue",
        "A plan put together by hand instead of by WritePlan.allocate.",
        "int32",
    ),
    _Tensor(
        "verify_plan_out.verify_num_valid",
        "out_verify_num_valid",
        "int32",
        (1,),
        "the number of entries of the verify plan",
        _COUNTER,
        "int64",
    ),
    _Tensor(
        "verify_plan_out.enable",
        "out_verify_enable",
        "int32",
        (1,),
        "whether the verify plan holds all entries",
        "A flag that was made as a bool, or on the host.",
        "bool",
    ),
    _Tensor(
        "write_plan_out.write_num_valid_reqs",
        "out_write_num_valid_reqs",
        "int32",
        (1,),
        "the number of requests of the write plan",
        _COUNTER,
        "int64",
    ),
)
TOKEN_TENSORS = (
    _Tensor(
        "req_to_verify_expected_tokens",
        "req_to_verify_expected_tokens",
        "int32",
        (MAX_REQS, MAX_LEN),
        "the token that every position of every request should hold",
        "Token ids come out of the tokenizer as int64, on the host.",
        "int64",
    ),
    _Tensor(
        "req_to_verify_expected_tokens_valid_lens",
        "req_to_verify_expected_tokens_valid_lens",
        "int64",
        (REQUESTS,),
        "how many tokens of each request are known",
        "Lengths are counted by the scheduler, often in int32 and on the host.",
        "int32",
    ),
)
ENTRY_TENSORS = tuple(
    _Tensor(
        f"verify_plan_out.{field}",
        f"out_{field}",
        "int64",
        (VERIFY_CAPACITY,),
        role,
        "A plan put together by hand instead of by VerifyPlan.allocate.",
        "int32",
    )
    for field, role in (
        ("verify_slot_indices", "the slots to verify"),
        ("verify_expected_tokens", "the tokens that they should hold"),
        ("verify_expected_positions", "their positions"),
        ("verify_prev_slot_indices", "the slots before them"),
    )
)


def _spread(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with a gap after each, as a column of a larger tensor has them."""
    import torch

    if tensor.ndim == 2:
        return strided(tensor)
    # A single element is contiguous whatever its stride, so there must be two.
    tensor = tensor.repeat(2) if tensor.shape[0] == 1 else tensor
    return torch.stack([tensor, tensor], 1).select(1, 0)


def _contiguous_record(item: _Tensor) -> Record:
    return Record(
        id=f"kv_canary.plan.contiguous/{item.argument}",
        function=PLAN,
        error="LayoutError",
        message="kv-canary: {name} must be contiguous",
        example=f"kv-canary: {item.name} must be contiguous",
        meaning=f"{item.argument} holds {item.role}. The kernel walks over it as one run of memory.",
        happens="A column or every second element of a larger tensor was passed: it has the right size, but gaps.",
        fix=item.mend if item.is_output else f"{item.argument} = {item.argument}.contiguous()",
        provoke=change(item.argument, _spread),
        repair=item.restored() if item.is_output else change(item.argument, contiguous),
    )


def _dtype_record(item: _Tensor) -> Record:
    return Record(
        id=f"kv_canary.plan.dtype/{item.argument}",
        function=PLAN,
        error="DtypeError",
        message="kv-canary: {name} must have dtype {expected}, got {got}",
        example=f"kv-canary: {item.name} must have dtype torch.{item.dtype}, got torch.{item.wrong}",
        meaning=f"{item.argument} holds {item.role}, as {item.dtype}. With another width the kernel would read or "
        "write across the borders of its elements.",
        happens=item.source,
        fix=item.mend if item.is_output else f"{item.argument} = {item.argument}.to(torch.{item.dtype})",
        provoke=to_dtype(item.argument, item.wrong),
        repair=item.restored() if item.is_output else to_dtype(item.argument, item.dtype),
    )


def _rank_record(item: _Tensor) -> Record:
    ndim = len(item.shape)
    got = (*item.shape, 1) if ndim == 1 else (item.shape[0] * item.shape[1],)
    flatten = change(item.argument, lambda tensor: tensor.reshape(item.shape))
    return Record(
        id=f"kv_canary.plan.rank/{item.argument}",
        function=PLAN,
        error="RankError",
        message="kv-canary: {name} must be {expected}-D, got shape {got}",
        example=f"kv-canary: {item.name} must be {ndim}-D, got shape {got}",
        meaning=f"{item.argument} holds {item.role} and has {'one dim' if ndim == 1 else 'a row for each request'}.",
        happens="A dim of size one was kept by an indexing step before."
        if ndim == 1
        else "The table was flattened, or one request's row of it passed instead of the whole.",
        fix=f"{item.argument} = {item.argument}.{'flatten()' if ndim == 1 else 'view(max_reqs, -1)'}"
        if not item.is_output
        else item.mend,
        provoke=change(item.argument, lambda tensor: tensor.reshape(got)),
        repair=flatten,
    )


def _length_record(item: _Tensor) -> Record:
    size = item.shape[0]
    got = 2 if size == 1 else size - 1
    longer = change(item.argument, lambda tensor: tensor.repeat(2))
    shorter = change(item.argument, lambda tensor: tensor.narrow(0, 0, size - 1))
    return Record(
        id=f"kv_canary.plan.length/{item.argument}",
        function=PLAN,
        error="ShapeError",
        message="kv-canary: {name} length must be {expected}, got {got}",
        example=f"kv-canary: {item.name} length must be {size}, got {got}",
        meaning=f"{item.argument} holds {item.role}: "
        + ("one number." if size == 1 else "one for each entry." if item.is_output else "one for each request."),
        happens="A list of another batch, or one padded to a captured batch size while the others were not."
        if not item.is_output
        else "A plan put together by hand, or of parts of two plans.",
        fix=item.mend if item.is_output else f"{item.argument} = {item.argument}[:bs]",
        provoke=longer if size == 1 else shorter,
        repair=item.restored(),
    )


def _device_record(item: _Tensor, where: str) -> Record:
    place = "cpu" if where == "cpu" else "cuda:1"
    anchor = "verify_plan_out.verify_slot_indices"
    return Record(
        id=f"kv_canary.plan.device/{item.argument}",
        function=PLAN,
        error="DeviceError",
        message="kv-canary: {name} must be on out_verify_offsets_scratch's device {expected}, got {got}",
        example=f"kv-canary: {item.name} must be on out_verify_offsets_scratch's device cuda:0, got {place}",
        meaning=f"{item.argument} holds {item.role}, and it is not where the verify plan is. All tensors of the call "
        "must be on one device; out_verify_offsets_scratch stands for that of verify_plan_out.verify_slot_indices.",
        happens=item.source,
        fix=f"build {item.argument.partition('.')[0]} with device=req_to_token.device"
        if item.is_output
        else f"{item.argument} = {item.argument}.to({anchor}.device)",
        provoke=move(item.argument, where),
        repair=follow(item.argument, "req_to_token" if item.is_output else anchor),
        section="the-error-in-the-wild",
        seed=2 if item.argument == "req_pool_indices" else None,
        cases=("P06",) if where == "cpu" else (),
    )


def _move_verify_plan(where: str) -> Change:
    return in_order(*(move(f"verify_plan_out.{name}", where) for name in VERIFY_FIELDS))


def _many_requests(call: Call) -> None:
    call["req_pool_indices"] = call["req_pool_indices"].repeat(1025)


def _little_room(call: Call) -> None:
    call["write_plan_out.write_offsets"] = call["write_plan_out.write_offsets"].narrow(0, 0, 4)
    call["write_plan_out.write_seed_slot_indices"] = call["write_plan_out.write_seed_slot_indices"].narrow(0, 0, 3)


PLAN_RECORDS = (
    Record(
        id="kv_canary.plan.batch/req_pool_indices",
        function=PLAN,
        error="ShapeError",
        message="kv-canary: launch_canary_plan_kernels supports at most bs=4096 reqs per launch, got bs={got}. "
        "Bump _PLAN_BS_BLOCK_SIZE if real workloads need this.",
        example="kv-canary: launch_canary_plan_kernels supports at most bs=4096 reqs per launch, got bs=4100. "
        "Bump _PLAN_BS_BLOCK_SIZE if real workloads need this.",
        meaning="Every program adds up the lengths of the whole batch, so the batch has a limit. The name in the "
        "message is the serving engine's constant for it.",
        happens="A list of tokens was passed where a list of requests is meant, or a batch padded without bound.",
        fix="split the batch into calls of at most 4096 requests, each with plans of its own",
        provoke=_many_requests,
        repair=restore("req_pool_indices"),
    ),
    Record(
        id="kv_canary.plan.window_mapping/full_to_swa_index_mapping",
        function=PLAN,
        error="ArgumentError",
        message="kv-canary: launch_canary_plan_kernels requires full_to_swa_index_mapping when swa_window_size > 0",
        example="kv-canary: launch_canary_plan_kernels requires full_to_swa_index_mapping when swa_window_size > 0",
        meaning="With a sliding window the positions live in a smaller pool with slots of its own; without the mapping "
        "the canary would look into the wrong ones.",
        happens="A model with sliding-window layers, served with one pool for all layers.",
        fix="pass the mapping of the sliding-window pool, or swa_window_size=0",
        provoke=replace("full_to_swa_index_mapping", None),
        repair=restore("full_to_swa_index_mapping"),
    ),
    Record(
        id="kv_canary.plan.capacity/verify_capacity",
        function=PLAN,
        error="ArgumentError",
        message="kv-canary: launch_canary_plan_kernels verify_capacity={got} does not match "
        "verify_plan_out.verify_slot_indices.shape[0]={expected}",
        example="kv-canary: launch_canary_plan_kernels verify_capacity=64 does not match "
        "verify_plan_out.verify_slot_indices.shape[0]=32",
        meaning="The number that was passed and the room of the plan disagree. With the larger of the two the kernel "
        "would write past the plan's end.",
        happens="The capacity is read from the configuration, while the plan was allocated for another one.",
        fix="verify_capacity = verify_plan_out.verify_slot_indices.shape[0]",
        provoke=replace("verify_capacity", 2 * VERIFY_CAPACITY),
        repair=lambda call: call.__setitem__("verify_capacity", call["verify_plan_out.verify_slot_indices"].shape[0]),
    ),
    *(_contiguous_record(item) for item in (*INPUTS, *OUTPUT_TENSORS)),
    *(_dtype_record(item) for item in (*INPUTS, *OUTPUT_TENSORS)),
    Record(
        id="kv_canary.plan.offsets_len/write_plan_out.write_offsets",
        function=PLAN,
        error="ShapeError",
        message="kv-canary: write_offsets_len must be positive, got {got}",
        example="kv-canary: write_offsets_len must be positive, got 0",
        meaning="There is always one more offset than requests: the last is the total. So even an empty plan has one.",
        happens="A plan put together by hand for a batch that turned out empty.",
        fix=NEW_WRITE_PLAN,
        provoke=change("write_plan_out.write_offsets", lambda offsets: offsets.narrow(0, 0, 0)),
        repair=restore("write_plan_out"),
    ),
    Record(
        id="kv_canary.plan.table_stride/req_to_token",
        function=PLAN,
        error="LayoutError",
        message="kv-canary: req_to_token_stride0 must be positive, got {got}",
        example="kv-canary: req_to_token_stride0 must be positive, got 0",
        meaning="The stride leads from one request's row to the next. PyTorch calls a table of one row contiguous "
        "whatever its stride is, so this is asked apart.",
        happens="A single row that was broadcast to look like a table.",
        fix="req_to_token = req_to_token.clone(memory_format=torch.contiguous_format)",
        provoke=change("req_to_token", lambda table: table.as_strided((1, MAX_LEN), (0, 1))),
        repair=change("req_to_token", contiguous),
    ),
    Record(
        id="kv_canary.plan.mapping_len/full_to_swa_index_mapping",
        function=PLAN,
        error="ShapeError",
        message="kv-canary: lut_len must be positive when has_swa_lut is True",
        example="kv-canary: lut_len must be positive when has_swa_lut is True",
        meaning="A mapping was passed (has_swa_lut), but it has no entry, so no slot could be translated.",
        happens="The sliding-window pool has not been set up yet when the canary is.",
        fix="pass the mapping with an entry for every slot of the full pool, or None",
        provoke=change("full_to_swa_index_mapping", lambda mapping: mapping.narrow(0, 0, 0)),
        repair=restore("full_to_swa_index_mapping"),
    ),
    *(_rank_record(item) for item in INPUTS[:1]),
    *(record(item) for item in INPUTS[1:3] for record in (_rank_record, _length_record)),
    *(_rank_record(item) for item in (*INPUTS[3:], *OUTPUT_TENSORS[:2])),
    *(record(item) for item in OUTPUT_TENSORS[2:] for record in (_rank_record, _length_record)),
    Record(
        id="kv_canary.plan.write_offsets/write_plan_out.write_offsets",
        function=PLAN,
        error="ShapeError",
        message="kv-canary: write_offsets_len must equal write_req_capacity + 1, got {got} and {capacity}",
        example="kv-canary: write_offsets_len must equal write_req_capacity + 1, got 6 and 6",
        meaning="The offsets end with the total, so there is one more of them than of seed slots.",
        happens="A plan put together by hand, with both tensors of one length.",
        fix=NEW_WRITE_PLAN,
        provoke=change("write_plan_out.write_offsets", lambda offsets: offsets.narrow(0, 0, WRITE_CAPACITY)),
        repair=restore("write_plan_out"),
    ),
    Record(
        id="kv_canary.plan.write_room/req_pool_indices",
        function=PLAN,
        error="ShapeError",
        message="kv-canary: bs={got} exceeds write_req_capacity={expected}",
        example="kv-canary: bs=4 exceeds write_req_capacity=3",
        meaning="The batch has more requests than the write plan has rows.",
        happens="The plan was allocated for the largest captured batch, and a larger one ran eagerly.",
        fix=NEW_WRITE_PLAN,
        provoke=_little_room,
        repair=restore("write_plan_out"),
    ),
    *(
        _device_record(item, where)
        for item, where in zip(
            (*INPUTS, *OUTPUT_TENSORS),
            ("cpu", "cpu", "other", "other", "other", "other", "cpu", "other", "cpu", "other"),
            strict=True,
        )
    ),
    Record(
        id="kv_canary.plan.device/verify_plan_out",
        function=PLAN,
        error="DeviceError",
        message="kv-canary: {name} must be on out_verify_offsets_scratch's device {expected}, got {got}",
        example="kv-canary: req_pool_indices must be on out_verify_offsets_scratch's device cuda:1, got cuda:0",
        meaning="The message measures everything against the verify plan. When the plan itself is the misplaced one, "
        "the first good input gets the blame; the notes say which tensors are the odd ones out.",
        happens="VerifyPlan.allocate(device='cuda') in a process whose current device is not the rank's.",
        fix=NEW_VERIFY_PLAN,
        provoke=_move_verify_plan("other"),
        repair=restore("verify_plan_out"),
        section="the-error-in-the-wild",
        cases=("P07", "P03"),
    ),
    Record(
        id="kv_canary.plan.token_lens/req_to_verify_expected_tokens_valid_lens",
        function=PLAN,
        error="ArgumentError",
        message="kv-canary: launch_plan_entries_kernel requires req_to_verify_expected_tokens_valid_lens "
        "when req_to_verify_expected_tokens is set",
        example="kv-canary: launch_plan_entries_kernel requires req_to_verify_expected_tokens_valid_lens "
        "when req_to_verify_expected_tokens is set",
        meaning="Without the number of known tokens, what lies behind them in the pool would be taken for tokens too. "
        "launch_plan_entries_kernel is the serving engine's name for the half of the plan that reads them.",
        happens="The lengths are an optional argument of the caller as well and were not passed on.",
        fix="pass how many tokens of each request are known, or no tokens",
        provoke=replace("req_to_verify_expected_tokens_valid_lens", None),
        repair=restore("req_to_verify_expected_tokens_valid_lens"),
    ),
    *(
        record(item)
        for item in TOKEN_TENSORS
        for record in (_contiguous_record, _dtype_record, _rank_record, _length_record)
        if item.dtype == "int64" or record is not _length_record
    ),
    *(_device_record(item, "cpu") for item in TOKEN_TENSORS),
    *(
        record(item)
        for item in ENTRY_TENSORS
        for record in (_contiguous_record, _dtype_record, _rank_record, _length_record)
        # The length of the first is the plan's capacity itself.
        if item is not ENTRY_TENSORS[0] or record is not _length_record
    ),
    *(_device_record(item, "other") for item in ENTRY_TENSORS[1:]),
)


def _unmapped(call: Call) -> None:
    from helpers import topology

    # The refusal depends on values, so the tensors have to be real.
    call.args = _sample_plan(topology.runnable(), 0)
    call.initial = dict(call.args)
    change("req_to_token", lambda table: table.clone().fill_(99))(call)


REFERENCE_RECORDS = (
    Record(
        id="kv_canary.reference.capacity/verify_capacity",
        function=REFERENCE,
        error="ArgumentError",
        message="kv-canary: launch_canary_plan_kernels_torch_reference verify_capacity={got} does not match "
        "verify_plan_out.verify_slot_indices.shape[0]={expected}",
        example="kv-canary: launch_canary_plan_kernels_torch_reference verify_capacity=64 does not match "
        "verify_plan_out.verify_slot_indices.shape[0]=32",
        meaning="The reference's own check of the plan's room.",
        happens="The capacity is read from the configuration, while the plan was allocated for another one.",
        fix="verify_capacity = verify_plan_out.verify_slot_indices.shape[0]",
        provoke=replace("verify_capacity", 2 * VERIFY_CAPACITY),
        repair=lambda call: call.__setitem__("verify_capacity", call["verify_plan_out.verify_slot_indices"].shape[0]),
    ),
    Record(
        id="kv_canary.reference.token_lens/req_to_verify_expected_tokens_valid_lens",
        function=REFERENCE,
        error="ArgumentError",
        message="kv-canary: launch_canary_plan_kernels_torch_reference requires "
        "req_to_verify_expected_tokens_valid_lens when req_to_verify_expected_tokens is set",
        example="kv-canary: launch_canary_plan_kernels_torch_reference requires "
        "req_to_verify_expected_tokens_valid_lens when req_to_verify_expected_tokens is set",
        meaning="Without the number of known tokens, what lies behind them would be taken for tokens too.",
        happens="The lengths are an optional argument of the caller as well and were not passed on.",
        fix="pass how many tokens of each request are known, or no tokens",
        provoke=replace("req_to_verify_expected_tokens_valid_lens", None),
        repair=restore("req_to_verify_expected_tokens_valid_lens"),
    ),
    Record(
        id="kv_canary.reference.slot/req_to_token",
        function=REFERENCE,
        error="ArgumentError",
        message="kv-canary: SWA slot {got} is outside full_to_swa_index_mapping length {expected}",
        example="kv-canary: SWA slot 99 is outside full_to_swa_index_mapping length 73",
        meaning="A slot of the table has no entry in the mapping. The reference can afford to look and says so; the "
        "kernel, which must not make the host wait, uses the mapping's last entry.",
        happens="Table and mapping come from two pools, or the mapping was built before the pool grew.",
        fix="pass the mapping of the pool that req_to_token points into",
        provoke=_unmapped,
        repair=restore("req_to_token"),
    ),
)

ALLOCATE_RECORDS = (
    Record(
        id="kv_canary.verify_plan.capacity/verify_capacity",
        function=VERIFY_PLAN,
        error="ArgumentError",
        message="kv-canary: VerifyPlan verify_capacity must be positive, got {got}",
        example="kv-canary: VerifyPlan verify_capacity must be positive, got 0",
        meaning="A plan without room could never hold an entry, so the canary would be silently off.",
        happens="The capacity is computed from a pool size that is not known yet.",
        fix="verify_capacity = max_reqs * max_seq_len, or less if plans may be skipped",
        provoke=replace("verify_capacity", 0),
        repair=restore("verify_capacity"),
    ),
    Record(
        id="kv_canary.write_plan.capacity/write_req_capacity",
        function=WRITE_PLAN,
        error="ArgumentError",
        message="kv-canary: WritePlan write_req_capacity must be positive, got {got}",
        example="kv-canary: WritePlan write_req_capacity must be positive, got -1",
        meaning="A plan without rows could take no batch.",
        happens="max_running_requests of -1, which elsewhere means no limit.",
        fix="write_req_capacity = max_running_requests",
        provoke=replace("write_req_capacity", -1),
        repair=restore("write_req_capacity"),
    ),
)


def _many_offsets(call: Call) -> None:
    call["req_pool_indices"] = call["req_pool_indices"].repeat(171).narrow(0, 0, 512)
    call["offsets"] = call["offsets"].repeat(129).narrow(0, 0, 513)


def _scatter_rank(name: str, shape: tuple[int, ...]) -> Record:
    want = 2 if name == "pool_out" else 1
    got = (POOL_ROWS * POOL_WIDTH,) if name == "pool_out" else (1, *shape)
    return Record(
        id=f"kv_canary.scatter.rank/{name}",
        function=SCATTER,
        error="RankError",
        message="kv-canary: scatter_req_token_ids {argument} must be {expected}-D, got shape {got}",
        example=f"kv-canary: scatter_req_token_ids {name} must be {want}-D, got shape {got}",
        meaning="The pool has a row for each request; everything else is a flat list.",
        happens="A padded batch [bs, max_len] was passed instead of its tokens one after the other."
        if name == "flat_in"
        else "A dim was added or lost by an indexing step before.",
        fix=f"{name} = {name}.{'view(max_reqs, -1)' if want == 2 else 'flatten()'}",
        provoke=change(name, lambda tensor: tensor.reshape(got)),
        repair=change(name, lambda tensor: tensor.reshape(shape)),
    )


def _scatter_dtype(name: str) -> Record:
    return Record(
        id=f"kv_canary.scatter.int64/{name}",
        function=SCATTER,
        error="DtypeTypeError",
        message="kv-canary: scatter_req_token_ids {argument} must be int64, got {got}",
        example=f"kv-canary: scatter_req_token_ids {name} must be int64, got torch.int32",
        meaning="The kernel reads this list as int64. The class is TypeError, as in the serving engine.",
        happens="The batch keeps its ids, offsets or rows in int32 to save memory.",
        fix=f"{name} = {name}.to(torch.int64)",
        provoke=to_dtype(name, "int32"),
        repair=to_dtype(name, "int64"),
    )


def _scatter_device(name: str) -> Record:
    return Record(
        id=f"kv_canary.scatter.device/{name}",
        function=SCATTER,
        error="DeviceError",
        message="kv-canary: {argument} must be on flat_in's device {expected}, got {got}",
        example=f"kv-canary: {name} must be on flat_in's device cuda:0, got cpu",
        meaning="The tokens are on the GPU, and one of the other tensors is not.",
        happens="The batch's lists are made on the host by the scheduler."
        if name != "pool_out"
        else "A pool that was built with torch.zeros(...), whose default device is the CPU, and never moved.",
        fix=f"{name} = {name}.to(flat_in.device)",
        provoke=move(name, "cpu"),
        repair=follow(name, "flat_in"),
        section="the-error-in-the-wild",
        cases=("P06",),
    )


SCATTER_RECORDS = (
    _scatter_rank("flat_in", (11,)),
    _scatter_rank("offsets", (4,)),
    _scatter_rank("req_pool_indices", (3,)),
    _scatter_rank("pool_out", (POOL_ROWS, POOL_WIDTH)),
    *(_scatter_dtype(name) for name in ("flat_in", "offsets", "req_pool_indices")),
    Record(
        id="kv_canary.scatter.int32/pool_out",
        function=SCATTER,
        error="DtypeTypeError",
        message="kv-canary: scatter_req_token_ids pool_out must be int32, got {got}",
        example="kv-canary: scatter_req_token_ids pool_out must be int32, got torch.int64",
        meaning="Token ids fit into 32 bits, and the pool of expected tokens keeps them so.",
        happens="The pool was allocated with the dtype of the tokens it is filled from.",
        fix="pool_out = torch.zeros(max_reqs, max_context_len, dtype=torch.int32, device=flat_in.device)",
        provoke=to_dtype("pool_out", "int64"),
        repair=restore("pool_out"),
    ),
    Record(
        id="kv_canary.scatter.offsets/offsets",
        function=SCATTER,
        error="ShapeError",
        message="kv-canary: scatter_req_token_ids offsets length {got} != bs+1 ({expected})",
        example="kv-canary: scatter_req_token_ids offsets length 3 != bs+1 (4)",
        meaning="Every request needs the place where its tokens begin, and the last one also where they end.",
        happens="torch.cumsum of the lengths, without the 0 in front.",
        fix="offsets = torch.nn.functional.pad(lens.cumsum(0), (1, 0))",
        provoke=change("offsets", lambda offsets: offsets.narrow(0, 1, 3)),
        repair=restore("offsets"),
    ),
    Record(
        id="kv_canary.scatter.batch/req_pool_indices",
        function=SCATTER,
        error="ShapeError",
        message="kv-canary: scatter_req_token_ids bs+1={got} exceeds BATCH_BLOCK=512; "
        "bump _SCATTER_BATCH_BLOCK if real workloads need this",
        example="kv-canary: scatter_req_token_ids bs+1=513 exceeds BATCH_BLOCK=512; "
        "bump _SCATTER_BATCH_BLOCK if real workloads need this",
        meaning="The serving engine scans the offsets in one block of 512. The limit is kept, although the kernel here "
        "has no such block.",
        happens="A batch of more than 511 requests.",
        fix="split the batch into calls of fewer than 512 requests",
        provoke=_many_offsets,
        repair=restore("req_pool_indices", "offsets"),
    ),
    *(_scatter_device(name) for name in ("offsets", "req_pool_indices", "pool_out")),
)

RECORDS = (*ALLOCATE_RECORDS, *PLAN_RECORDS, *REFERENCE_RECORDS, *SCATTER_RECORDS)
