"""The canary plan in one launch, and the scatter of request tokens.

The plan has two halves. Program 0 makes the write plan and the counters. Every other program, a *worker*, fills one
equal share of the verify entries. Shares are cut from the list of all entries, not from the list of requests, so a
batch of very different lengths is spread evenly and every store is a packed, aligned run.

To know where its share lies, a worker has to know the length of every request before it. A second launch could hand it
those sums; instead each worker adds them up itself. The batch is small (4096 lengths, which stay in the cache), and so
the whole plan needs no scratch memory and no launch that waits for another.

Pointers and sizes that belong together travel as tuples, here and in every helper:

- ``batch``: pool indices and prefix lengths of the requests, their number, rows and row length of the table, window
- ``table``: slot of every (pool index, position), and its row stride
- ``mapping``: sliding-window slot of every full slot or None, and its length
- ``expected``: token of every (pool index, place) or None, row stride, rows, row length, valid places of each
  request, and place minus position
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.launch import gdc_wait

# A share begins at a multiple of this many entries: 128 bytes, a whole cache line.
ALIGN = tl.constexpr(16)
ZERO_BLOCK = tl.constexpr(1024)


@triton.jit
def _prefix(batch, row, exists):
    """Pool index of a request, its first position to verify, and the number of positions; all int64.

    A request that is padding, or whose pool index does not exist, has pool index 0 and no positions. A prefix longer
    than a row of the table is cut to the row, a negative one counts as empty.
    """
    pools_ptr, prefix_lens_ptr, _, max_reqs, max_len, window = batch
    pool = tl.load(pools_ptr + row, mask=exists, other=0)
    length = tl.load(prefix_lens_ptr + row, mask=exists, other=0)
    live = (pool > 0) & (pool < max_reqs)
    pool = tl.where(live, pool, 0)
    length = tl.where(live, tl.minimum(tl.maximum(length, 0), max_len), 0)
    start = tl.maximum(length - window, 0)
    return pool, start, length - start


@triton.jit
def _translate(mapping, slot, exists):
    """Slot of the sliding-window pool for a slot of the full one. Negative slots pass, those past the end clamp."""
    mapping_ptr, mapping_len = mapping
    slot = slot.to(tl.int64)
    if mapping_ptr is not None:
        mapped = tl.load(mapping_ptr + tl.minimum(slot, mapping_len - 1), mask=exists & (slot >= 0), other=0)
        slot = tl.where(slot < 0, slot, mapped)
    return slot


@triton.jit
def _write_plan(counters, write_plan, batch, extend_lens_ptr, table, mapping, capacity, BLOCK: tl.constexpr):
    """Offsets and seeds of the requests' new chain links, and the counters of both plans."""
    num_valid_ptr, enable_ptr, num_reqs_ptr = counters
    offsets_ptr, offsets_len, seeds_ptr = write_plan
    table_ptr, table_stride = table
    size = batch[2]
    entries = tl.zeros([], dtype=tl.int64)
    written = tl.zeros([], dtype=tl.int64)
    for first in range(0, size, BLOCK):
        row = first + tl.arange(0, BLOCK)
        exists = row < size
        pool, start, count = _prefix(batch, row, exists)
        extend = tl.load(extend_lens_ptr + row, mask=exists, other=0)
        extend = tl.where(pool > 0, tl.maximum(extend, 0), 0)
        tl.store(offsets_ptr + row, written + tl.cumsum(extend, 0) - extend, mask=exists)
        seeded = (count > 0) & (extend > 0)
        last = tl.load(table_ptr + pool * table_stride + start + count - 1, mask=seeded, other=-1)
        tl.store(seeds_ptr + row, _translate(mapping, last, seeded), mask=exists)
        entries += tl.sum(count, 0)
        written += tl.sum(extend, 0)
    tl.store(offsets_ptr + size, written)
    for first in range(size + 1, offsets_len, ZERO_BLOCK):
        place = first + tl.arange(0, ZERO_BLOCK)
        tl.store(offsets_ptr + place, tl.zeros([ZERO_BLOCK], dtype=tl.int64), mask=place < offsets_len)
    tl.store(num_valid_ptr, tl.minimum(entries, capacity).to(tl.int32))
    tl.store(enable_ptr, (entries <= capacity).to(tl.int32))
    tl.store(num_reqs_ptr, size)


@triton.jit
def _find_share(batch, worker, log2_workers, BLOCK: tl.constexpr, CHUNKS: tl.constexpr):
    """The share of a worker: which entries, and where among the requests it begins.

    Returns:
        Number of entries of the whole batch, first entry of the share, the one after its last, the request that the
        first one belongs to, and the first entry of that request.
    """
    size = batch[2]
    column = tl.arange(0, BLOCK)
    if CHUNKS == 1:
        _, _, count = _prefix(batch, column, column < size)
        total = tl.sum(count, 0)
    else:
        # Half a chunk at a time, because a program holds what it has asked for in registers until it comes.
        counts = tl.zeros([CHUNKS, BLOCK // 2], dtype=tl.int64)
        for half in range(0, tl.minimum(size, BLOCK), BLOCK // 2):
            rows = half + tl.arange(0, CHUNKS)[:, None] * BLOCK + tl.arange(0, BLOCK // 2)[None, :]
            _, _, count = _prefix(batch, rows, rows < size)
            counts += count
        chunk_counts = tl.sum(counts, 1)
        total = tl.sum(chunk_counts, 0)
    # The number of workers is a power of two, because a 64-bit division takes as long as a load. The next multiple of
    # ALIGN is found in a way that the compiler does not see through: what it may know of it, VECTOR decides.
    share = ((total >> log2_workers) | (ALIGN - 1)) + 1
    first = worker * share
    row = 0
    begin = tl.zeros([], dtype=tl.int64)
    if CHUNKS > 1:
        # A scan of the whole batch does not fit into registers: find the chunk of the share, then scan that one alone.
        chunk_ends = tl.cumsum(chunk_counts, 0)
        behind = chunk_ends <= first
        row = BLOCK * tl.sum(behind.to(tl.int32), 0)
        begin = tl.max(tl.where(behind, chunk_ends, 0), 0)
        _, _, count = _prefix(batch, row + column, row + column < size)
    ends = begin + tl.cumsum(count, 0)
    behind = ends <= first
    row += tl.sum(behind.to(tl.int32), 0)
    begin = tl.max(tl.where(behind, ends, begin), 0)
    return total, first, tl.minimum(first + share, total), row, begin


@triton.jit
def _load_row(batch, expected, row):
    """Pool index, first position, number of positions and end of the known tokens of one request, or of none."""
    expected_ptr, _, expected_lens_ptr, expected_rows, expected_width, _ = expected
    exists = row < batch[2]
    pool, start, count = _prefix(batch, row, exists)
    token_end = tl.zeros([], dtype=tl.int64)
    if expected_ptr is not None:
        known = tl.load(expected_lens_ptr + row, mask=exists, other=0)
        token_end = tl.where(pool < expected_rows, tl.minimum(tl.maximum(known, 0), expected_width), 0)
    return pool, start, count, token_end


@triton.jit
def _write_entries(verify_plan, entry, pool, position, token_end, table, mapping, expected, exists, FULL: tl.constexpr):
    """The four fields of a tile of entries. FULL promises that all of them exist, so that stores need no mask."""
    slots_ptr, tokens_ptr, positions_ptr, prevs_ptr = verify_plan
    table_ptr, table_stride = table
    expected_ptr, expected_stride, _, _, _, token_shift = expected
    stored = None if FULL else exists
    pool = pool.to(tl.int64)
    source = table_ptr + pool * table_stride + position
    slot = tl.load(source, mask=stored)
    prev = tl.load(source - 1, mask=exists & (position > 0), other=-1)
    token = tl.full(position.shape, -1, tl.int64)
    if expected_ptr is not None:
        place = position.to(tl.int64) + token_shift
        known = exists & (place >= 0) & (place < token_end)
        token = tl.load(expected_ptr + pool * expected_stride + place, mask=known, other=-1).to(tl.int64)
    tl.store(positions_ptr + entry, position.to(tl.int64), mask=stored)
    tl.store(slots_ptr + entry, _translate(mapping, slot, exists), mask=stored)
    tl.store(prevs_ptr + entry, _translate(mapping, prev, exists), mask=stored)
    tl.store(tokens_ptr + entry, token, mask=stored)


@triton.jit
def _write_share(
    verify_plan,
    batch,
    table,
    mapping,
    expected,
    first,
    end,
    row,
    begin,
    TILE: tl.constexpr,
    INDEX: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """The entries from ``first`` to ``end``; request ``row`` has the first of them and begins at entry ``begin``."""
    owner, start, count, known = _load_row(batch, expected, row)
    # The next request is always under way while this one is written, so that nobody waits for it.
    next_owner, next_start, next_count, next_known = _load_row(batch, expected, row + 1)
    for tile in range(first, end, TILE):
        tile_end = tl.minimum(tile + TILE, end)
        entry = tile + tl.arange(0, TILE)
        if VECTOR:
            entry = tl.max_contiguous(tl.multiple_of(entry, ALIGN), ALIGN)
        pool = tl.zeros([TILE], dtype=INDEX) + owner.to(INDEX)
        position = (entry - begin + start).to(INDEX)
        token_end = tl.zeros([TILE], dtype=INDEX) + known.to(INDEX)
        # Lay the requests of this tile over one another, each from its first entry on, so that the last one stays.
        while begin + count < tile_end:
            begin += count
            row += 1
            owner, start, count, known = next_owner, next_start, next_count, next_known
            next_owner, next_start, next_count, next_known = _load_row(batch, expected, row + 1)
            own = entry >= begin
            pool = tl.where(own, owner.to(INDEX), pool)
            position = tl.where(own, (entry - begin + start).to(INDEX), position)
            token_end = tl.where(own, known.to(INDEX), token_end)
        exists = entry < tile_end
        if tile_end - tile == TILE:
            all_exist = tl.full([TILE], True, tl.int1)
            _write_entries(verify_plan, entry, pool, position, token_end, table, mapping, expected, all_exist, True)
        else:
            _write_entries(verify_plan, entry, pool, position, token_end, table, mapping, expected, exists, False)


# Sizes differ from step to step; compiling anew for those that are 1 or multiples of 16 would gain nothing.
_SIZES = (
    "size",
    "max_reqs",
    "max_len",
    "table_stride",
    "window",
    "mapping_len",
    "expected_rows",
    "expected_width",
    "expected_stride",
    "token_shift",
    "capacity",
    "offsets_len",
    "log2_workers",
)


@triton.jit(do_not_specialize=_SIZES)
def plan_kernel(
    slots_ptr,
    tokens_ptr,
    positions_ptr,
    prevs_ptr,
    num_valid_ptr,
    enable_ptr,
    offsets_ptr,
    seeds_ptr,
    num_reqs_ptr,
    pools_ptr,
    prefix_lens_ptr,
    extend_lens_ptr,
    table_ptr,
    mapping_ptr,
    expected_ptr,
    expected_lens_ptr,
    size,
    max_reqs,
    max_len,
    table_stride,
    window,
    mapping_len,
    expected_rows,
    expected_width,
    expected_stride,
    token_shift,
    capacity,
    offsets_len,
    log2_workers,
    BLOCK: tl.constexpr,
    CHUNKS: tl.constexpr,
    TILE: tl.constexpr,
    INDEX: tl.constexpr,
    VECTOR: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The whole plan, for at most BLOCK x CHUNKS requests, TILE entries at a time.

    INDEX is the dtype that holds any row and column of the tables. With VECTOR the fields of full tiles are stored 16
    bytes at a time, at the price of an exchange between threads before.

    EARLY tells that programs may be placed before the kernel before this one has ended.

    Without a mapping or expected tokens their pointers are None; without a window, ``window`` is ``max_len``.

    Grid: (1 + 2^log2_workers,).
    """
    if EARLY:
        gdc_wait()
    batch = (pools_ptr, prefix_lens_ptr, size, max_reqs, max_len, window)
    table = (table_ptr, table_stride)
    mapping = (mapping_ptr, mapping_len)
    expected = (expected_ptr, expected_stride, expected_lens_ptr, expected_rows, expected_width, token_shift)
    if tl.program_id(0) == 0:
        counters = (num_valid_ptr, enable_ptr, num_reqs_ptr)
        write_plan = (offsets_ptr, offsets_len, seeds_ptr)
        _write_plan(counters, write_plan, batch, extend_lens_ptr, table, mapping, capacity, BLOCK * min(CHUNKS, 2))
    else:
        worker = (tl.program_id(0) - 1).to(tl.int64)
        total, first, end, row, begin = _find_share(batch, worker, log2_workers, BLOCK, CHUNKS)
        if total <= capacity:
            verify_plan = (slots_ptr, tokens_ptr, positions_ptr, prevs_ptr)
            _write_share(verify_plan, batch, table, mapping, expected, first, end, row, begin, TILE, INDEX, VECTOR)


@triton.jit(do_not_specialize=("flat_len", "pool_rows", "pool_width", "pool_row_stride"))
def scatter_tokens_kernel(
    flat_ptr,
    offsets_ptr,
    pools_ptr,
    pool_ptr,
    flat_stride,
    offsets_stride,
    pools_stride,
    pool_row_stride,
    pool_column_stride,
    flat_len,
    pool_rows,
    pool_width,
    BLOCK: tl.constexpr,
):
    """``pool[pools[r], j] = flat[offsets[r] + j]`` up to ``offsets[r + 1]`` and the pool's width.

    Rows and sources that do not exist are skipped.

    Grid: (requests, programs that share a request's blocks).
    """
    request = tl.program_id(0).to(tl.int64)
    begin = tl.load(offsets_ptr + request * offsets_stride)
    end = tl.minimum(tl.load(offsets_ptr + (request + 1) * offsets_stride), flat_len)
    row = tl.load(pools_ptr + request * pools_stride)
    # Sums and differences of absurd offsets may wrap around, but only to numbers that the masks exclude.
    if (row >= 0) & (row < pool_rows):
        width = tl.minimum(end - begin, pool_width)
        for first in range(tl.program_id(1) * BLOCK, width, BLOCK * tl.num_programs(1)):
            column = first + tl.arange(0, BLOCK)
            source = begin + column
            exists = (column < width) & (source >= 0) & (source < end)
            token = tl.load(flat_ptr + source * flat_stride, mask=exists)
            target = pool_ptr + row * pool_row_stride + column * pool_column_stride
            tl.store(target, token.to(tl.int32), mask=exists)
