"""Greedy suppression on a GPU: a bit a pair, then a scan by one program; nothing goes to the host but the count.

At PV-RCNN's training sizes, the 9,000 best boxes of a scene, there are 40.5 M pairs. One in thirty has circles that
meet; only these need a polygon, about 2,500 operations, against 6 for the others. Pairs of both kinds side by side
would make every warp wait for its polygon, so one kernel lists the pairs that meet (0.5 GFLOP; 4 bytes a listed pair)
and another takes polygons off the list, each thread one (3.4 GFLOP), and sets a bit in a table of 10 MB. At test
sizes, 1,024 to 4,096 boxes, all of this fits the L2 cache. The order of the list is left to chance, the bits are not.
Upright boxes need 12 operations a pair and no list.

The scan takes 64 boxes a step, 141 steps for 9,000. It reads, of each kept box, the word of bits for these 64, and
settles them among themselves by repetition: whether a box stays depends on earlier ones only, so a guess is right for
one more box each time, and after as many repetitions as the longest chain of suppressions. It ends with ``limit``.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pcdet.ops.iou3d.triton import circles_meet, load_outline, outlines, published_area
from pcdet.ops.triton import block_of, launch, size_on_host

WORD = tl.constexpr(64)  # boxes whose bits one int64 holds
SMALLEST_UNION = tl.constexpr(1e-8)  # square metres, as in reference.py
LISTED = 1 << 23  # pairs at most in a list: bounds its memory, 32 MiB; more rows take another pair of launches
PAIRS = 128  # a pair a thread: the vertices of one fill its registers
WALKERS = 4096  # programs that share the list, whose length the host does not know
KEPT = 256  # kept boxes whose bits are read at once


@triton.jit
def _or(a, b):
    return a | b


@triton.jit(do_not_specialize=["first", "last", "m"])  # one compilation serves every number of boxes
def _list_kernel(table, held, pairs, length, first, last, m, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Append to ``pairs`` which boxes of rows [first, last) have circles that meet those of later boxes of the group.

    Rows are counted over groups of m boxes. A pair is stored as ``(row - first) * m + column``.
    """
    row = first + tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    group = row // m
    there = row < last
    count = tl.load(held + group, mask=there, other=0).to(tl.int32)
    own = table + row.to(tl.int64) * 16
    x, y = tl.load(own, mask=there, other=0.0), tl.load(own + 1, mask=there, other=0.0)
    radius = tl.load(own + 15, mask=there, other=0.0)
    ahead = there[:, None] & (column > (row - group * m)[:, None]) & (column < count[:, None])
    if tl.max(tl.max(ahead.to(tl.int32), axis=1), axis=0) > 0:
        other = table + ((group * m)[:, None] + column).to(tl.int64) * 16
        dx = x[:, None] - tl.load(other, mask=ahead, other=0.0)
        dy = y[:, None] - tl.load(other + 1, mask=ahead, other=0.0)
        reach = radius[:, None] + tl.load(other + 15, mask=ahead, other=0.0)
        near = tl.reshape(ahead & (dx * dx + dy * dy < reach * reach), (ROWS * COLUMNS,))
        rank = tl.cumsum(near.to(tl.int32), axis=0)
        found = tl.max(rank, axis=0)
        if found > 0:
            begin = tl.atomic_add(length, found, sem="relaxed")
            code = tl.reshape((row - first)[:, None] * m + column, (ROWS * COLUMNS,))
            tl.store(pairs + begin + rank - 1, code, mask=near)


@triton.jit(do_not_specialize=["first", "m", "words"])
def _suppress_listed_kernel(table, pairs, length, bits, first, m, words, threshold, PAIRS: tl.constexpr):
    """Set bit ``column`` of ``row`` where the first box of a listed pair suppresses the second."""
    count = tl.load(length)
    for block in range(tl.program_id(0), tl.cdiv(count, PAIRS), tl.num_programs(0)):
        place = block * PAIRS + tl.arange(0, PAIRS)
        there = place < count
        code = tl.load(pairs + place, mask=there, other=0)
        row, column = first + code // m, code % m
        a = load_outline(table, row, there)
        b = load_outline(table, row - row % m + column, there)
        shared = tl.where(circles_meet(a, b), published_area(a, b), 0.0)
        union = tl.maximum(a[14] + b[14] - shared, SMALLEST_UNION)
        above = there & (shared > 0) & (tl.div_rn(shared, union) > threshold)
        bit = tl.full((PAIRS,), 1, tl.int64) << (column % WORD).to(tl.int64)
        tl.atomic_or(bits + row.to(tl.int64) * words + column // WORD, bit, mask=above, sem="relaxed")


@triton.jit
def _upright(boxes, row, there):
    """Least x y, largest x y and area of boxes with heading 0; nothing meets one with a NaN."""
    x, y = tl.load(boxes + row * 7, mask=there, other=0.0), tl.load(boxes + row * 7 + 1, mask=there, other=0.0)
    dx, dy = tl.load(boxes + row * 7 + 3, mask=there, other=0.0), tl.load(boxes + row * 7 + 4, mask=there, other=0.0)
    whole = (x == x) & (y == y) & (dx == dx) & (dy == dy)  # minima on a GPU would ignore a NaN
    low_x, high_x = tl.where(whole, x - dx / 2, float("inf")), tl.where(whole, x + dx / 2, -float("inf"))
    return low_x, y - dy / 2, high_x, y + dy / 2, dx * dy


@triton.jit(do_not_specialize=["m", "words"])
def _suppress_upright_kernel(boxes, held, bits, m, words, threshold, ROWS: tl.constexpr):
    """Write one word of ``bits`` for each of some rows of a group: who of 64 later boxes is suppressed."""
    group, word = tl.program_id(2), tl.program_id(1)
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), word * WORD + tl.arange(0, WORD)
    count = tl.load(held + group).to(tl.int32)
    start = group.to(tl.int64) * m
    found = tl.zeros((ROWS,), tl.int64)
    if (word + 1) * WORD > tl.program_id(0) * ROWS:  # there are later boxes in the word
        a, b = _upright(boxes, start + row, row < count), _upright(boxes, start + column, column < count)
        length = tl.minimum(a[2][:, None], b[2][None, :]) - tl.maximum(a[0][:, None], b[0][None, :])
        width = tl.minimum(a[3][:, None], b[3][None, :]) - tl.maximum(a[1][:, None], b[1][None, :])
        shared = tl.maximum(length, 0.0) * tl.maximum(width, 0.0)
        union = tl.maximum(a[4][:, None] + b[4][None, :] - shared, SMALLEST_UNION)
        above = (shared > 0) & (tl.div_rn(shared, union) > threshold)
        above &= (column[None, :] > row[:, None]) & (column < count)[None, :]
        lane = tl.full((1, WORD), 1, tl.int64) << tl.arange(0, WORD)[None, :].to(tl.int64)
        found = tl.sum(tl.where(above, lane, 0), axis=1)  # distinct bits: the sum is their union
    tl.store(bits + (start + row) * words + word, found, mask=row < m)


@triton.jit(do_not_specialize=["m", "words", "limit"])
def _scan_kernel(bits, held, kept, counts, m, words, limit, WORD: tl.constexpr, KEPT: tl.constexpr):
    """Write to ``kept`` the first ``limit`` boxes of a group that no kept one before them suppresses."""
    group = tl.program_id(0)
    bits += group.to(tl.int64) * m * words
    kept += group.to(tl.int64) * limit
    boxes = tl.load(held + group).to(tl.int32)
    lane = tl.arange(0, WORD)
    count, word = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    while (word * WORD < boxes) & (count < limit):
        blocked = tl.full((), 0, tl.int64)
        for begin in range(0, count, KEPT):
            slot = begin + tl.arange(0, KEPT)
            row = tl.load(kept + slot, mask=slot < count, other=0)
            blocked |= tl.reduce(tl.load(bits + row * words + word, mask=slot < count, other=0), 0, _or)
        place = word * WORD + lane
        own = tl.load(bits + place.to(tl.int64) * words + word, mask=place < boxes, other=0)
        alive = ((place < boxes) & (((blocked >> lane) & 1) == 0)).to(tl.int32)
        stays, changed = alive, tl.full((), 1, tl.int32)
        while changed > 0:
            blocked = tl.reduce(tl.where(stays > 0, own, 0), 0, _or)
            better = alive * (((blocked >> lane) & 1) == 0).to(tl.int32)
            changed = tl.max(better ^ stays, axis=0)
            stays = better
        slot = count + tl.cumsum(stays, axis=0) - 1
        tl.store(kept + slot, place.to(tl.int64), mask=(stays > 0) & (slot < limit))
        tl.debug_barrier()  # the next step reads what other threads have written
        count = tl.minimum(count + tl.sum(stays, axis=0), limit)
        word += 1
    tl.store(counts + group, count.to(tl.int64))


def greedy(boxes: Tensor, threshold: float, limit: int) -> Tensor:
    return _of_one_group(boxes, threshold, limit, rotated=True)


def greedy_normal(boxes: Tensor, threshold: float, limit: int) -> Tensor:
    return _of_one_group(boxes, threshold, limit, rotated=False)


def _of_one_group(boxes: Tensor, threshold: float, limit: int, rotated: bool) -> Tensor:
    held = torch.full((1,), len(boxes), dtype=torch.int64, device=boxes.device)
    kept, counts = greedy_groups(boxes[None], held, threshold, limit, rotated)
    return kept[0, : size_on_host(counts)]


def greedy_groups(boxes: Tensor, held: Tensor, threshold: float, limit: int, rotated: bool) -> tuple[Tensor, Tensor]:
    """Survivors of G groups at once: (G, limit) int64 positions, -1 behind them, and how many they are, (G,) int64.

    ``boxes`` (G, M, 7+) are in descending order of their scores; the first ``held`` (G,) int64 of each group exist.
    """
    groups, m = boxes.shape[:2]
    words = triton.cdiv(m, WORD.value)
    plain = boxes[..., :7].float().contiguous()
    if rotated:
        bits = _rotated_bits(plain.flatten(0, 1), held, m, words, threshold)
    else:
        bits = torch.empty(groups * m, words, dtype=torch.int64, device=boxes.device)
        rows = block_of(m, 16, 32)
        grid = (triton.cdiv(m, rows), words, groups)
        launch(_suppress_upright_kernel, grid, plain, held, bits, m, words, threshold, ROWS=rows)
    kept = torch.full((groups, limit), -1, dtype=torch.int64, device=boxes.device)
    counts = torch.zeros(groups, dtype=torch.int64, device=boxes.device)
    launch(_scan_kernel, (groups,), bits, held, kept, counts, m, words, limit, WORD=WORD.value, KEPT=KEPT, num_warps=2)
    return kept, counts


def _rotated_bits(boxes: Tensor, held: Tensor, m: int, words: int, threshold: float) -> Tensor:
    """(G * M, 7) boxes -> (G * M, words) int64: bit j of row i says that box i suppresses box j of its group."""
    bits = torch.zeros(len(boxes), words, dtype=torch.int64, device=boxes.device)
    table = outlines(boxes)
    step = max(1, min(len(boxes), LISTED // max(m, 1)))  # rows whose pairs fit the list
    pairs = torch.empty(step * m, dtype=torch.int32, device=boxes.device)
    lengths = torch.zeros(
        triton.cdiv(len(boxes), step), 4, dtype=torch.int32, device=boxes.device
    )  # of 16 bytes: aligned
    tile = {"ROWS": 16, "COLUMNS": 64}
    for k, first in enumerate(range(0, len(boxes), step)):
        last, length = min(first + step, len(boxes)), lengths[k]
        grid = (triton.cdiv(last - first, tile["ROWS"]), triton.cdiv(m, tile["COLUMNS"]))
        launch(_list_kernel, grid, table, held, pairs, length, first, last, m, **tile)
        walkers = (min(WALKERS, triton.cdiv(step * m, PAIRS)),)
        launch(_suppress_listed_kernel, walkers, table, pairs, length, bits, first, m, words, threshold, PAIRS=PAIRS)
    return bits
