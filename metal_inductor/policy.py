"""Every heuristic, as a pure function of shapes, dtypes and device; each constant stands beside its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy

# One simdgroup on every Apple GPU, one warp on NVIDIA's.
SIMDGROUP = 32
# Threadgroup memory of a threadgroup on every Apple GPU.
MAX_THREADGROUP_BYTES = 32768
# Threadgroups of 256 threads keep several groups on a core of every Apple GPU and divide the 1024 limit.
POINTWISE_GROUP = 256


def known_int(size: Any, otherwise: int) -> int:
    """`size` as an int, or `otherwise` while it is symbolic."""
    size = sympy.sympify(size)
    return int(size) if size.is_Integer else otherwise


def pointwise_group(threads: Sequence[Any], device: str) -> tuple[int, int, int]:
    """Threadgroup for a grid of one thread an element: rows of 32 where the inner dimension is that long, so that
    neighbouring lanes touch neighbouring memory, and the rest of 256 threads in the outer dimensions."""
    x = known_int(threads[0], POINTWISE_GROUP)
    y = known_int(threads[1], 1)
    width = POINTWISE_GROUP
    while width > SIMDGROUP and width >= 2 * max(x, 1):
        width //= 2
    height = min(POINTWISE_GROUP // width, max(y, 1))
    return (width, max(height, 1), 1)


# ---------------------------------------------------------------------------------------------- what becomes memory

# A value that several ops read is written to memory when recomputing it would cost more than this.
# Loads dominate on Apple GPUs (one cached read is about four simple ops); eight ops is the length of a typical
# activation, which MLX also recomputes rather than stores.
MAX_SHARED_OPS = 8
MAX_SHARED_LOADS = 2
# Longer expressions make the Metal compiler slow and spill registers.
MAX_OPS = 96
MAX_LOADS = 20


def becomes_memory(operations: int, loads: int, shared: bool) -> bool:
    """Whether a value of so many operations and loads an element is written out rather than computed where it is read;
    `shared`: several ops read it."""
    heavy = operations > MAX_SHARED_OPS or loads > MAX_SHARED_LOADS
    return (shared and heavy and operations > 0) or operations > MAX_OPS or loads > MAX_LOADS


# A computed value that is read at data-dependent places is written to memory first when one element takes more
# operations than this: the same element may be asked for many times.
MAX_INDIRECT_OPS = 4
# A selection among more parts than this is written part by part: every branch may read a buffer of its own, and Metal
# binds at most 31 of them.
MAX_SELECTED_PARTS = 12
# How many kernels back a node looks for company: far enough for the siblings of one transformer layer.
FUSION_WINDOW = 24

# ---------------------------------------------------------------------------------------------- searches and scans

# The expression of a search grows by one load a bit; longer sequences are torch's.
MAX_SEARCH_BITS = 18
# What Metal has no atomics for: each element of the base looks through all indices of its row and reduces what is
# meant for it. Work grows with their number; from this many on the call is left to ATen.
MAX_COLLECTED = 256
# A scan in which each element reads all before it: a row of 2048 reads 2 M elements from cache; a scan's two passes
# over memory are then no quicker.
MAX_SCAN_LENGTH = 2048
# Operations in all, about a millisecond of a small GPU.
MAX_SCAN_OPERATIONS = 1 << 26

# ---------------------------------------------------------------------------------------------- reductions

# A reduction of a whole tensor is one row: past this length it is cut into rows of its own, so that more than one
# threadgroup works on it and no accumulator adds up so many terms that its rounding errors show.
LONG_REDUCTION = 1 << 12
# Rows of a one-dimensional tensor whose length is known only when the graph is called: a few for every GPU core.
CHANGING_ROWS = 256
# A norm over a whole tensor of up to this length stays one row and one kernel with its neighbours: 64 elements a thread
# of one threadgroup, against three kernels or more of rows that are cut. A guess, not a measurement.
MAX_NORM_ROW = 1 << 16


@dataclass(frozen=True)
class ReductionTiling:
    """`lanes` threads share a row (1, 32, or a whole threadgroup of more); a threadgroup holds `rows_per_group` rows.

    A thread alone keeps `chains` accumulators, emptied into block sums every `block` steps. Threads that share a row
    take `vector` elements each in a step, neighbours that are whole words or one of every `lanes`, and make `steps` of
    them (0: as many as the row needs); a row is cut into `splits` parts. With `columns` neighbouring lanes are
    neighbouring rows, `rows_per_group` of them, and `lanes` counts the threads of one row.
    """

    lanes: int
    rows_per_group: int
    chains: int = 1
    block: int = 64  # steps: error against float64 0.7 to 1.4 times eager's on rows of 1000 to 4000; unblocked 1.8 to 4
    vector: int = 1
    steps: int = 0
    splits: int = 1
    columns: bool = False


# On a CPU a row is one thread: a fiber switch costs about 5 ns, an element of a vectorised loop under 1 ns. Eight
# chains hide the latency of a float add (4 cycles on Zen 4) and fill one AVX register.
CPU_CHAINS = 8
# Shorter rows than this leave most of a simdgroup idle: one thread a row.
SHORT_ROW = 16
# Elements that a thread loads before it uses the first, where neighbours are not read together.
STRIDED_VECTOR = 4
# A thread holds so many elements of a row, in so many registers, from one walk over it to the next. On an H200, 4096 x
# 2048 bfloat with 64 lanes a row and 4 words a lane: rms_norm 10.3 us (torch 11.7), layer_norm 10.7 us (torch 17.7).
# Other tiles were not measured.
MAX_HELD_ELEMENTS, MAX_HELD_REGISTERS = 32, 32
# Words that a single walk reads are loaded before the first one while all loads take no more registers than this: the
# two kernels above need 64 registers in all and spill none.
EARLY_REGISTERS = 48
MAX_LANES = 1024
MAX_COLUMN_BYTES = 24576  # of a threadgroup's 32 KiB
# Elements of a column that a thread should have before columns are cut into parts: fewer take less time than a second
# dispatch. A guess, not a measurement.
MIN_COLUMN_SHARE = 32
# Rows of unknown number are many, of unknown length long.
MANY_ROWS, UNKNOWN_LENGTH = 1 << 14, 1 << 12
# A row of so many elements is worth a second dispatch when the GPU would else be idle. On an H200 two dispatches take
# 5.7 us for a softmax of 128256 floats (torch 40.5) and 4.5 us for an argmax of 151936 (torch 9.9); from which length
# on two are faster than one was not measured.
SPLIT_ROW = 1 << 14


def reduction_tiling(rows: Any, count: Any, device: str, vector: int = 0, words: int = 0) -> ReductionTiling:
    """How `rows` reductions of `count` elements each are spread over threads. `vector` neighbouring elements are
    `words` 16-byte words of all buffers together; 0: elements are read one by one."""
    length = known_int(count, UNKNOWN_LENGTH)
    if device == "cpu":
        return ReductionTiling(1, 64, CPU_CHAINS if length >= 2 * CPU_CHAINS else 1)
    if length <= SHORT_ROW:
        return ReductionTiling(1, POINTWISE_GROUP)
    known = sympy.sympify(count).is_Integer
    number = known_int(rows, MANY_ROWS)
    taken = vector or min(STRIDED_VECTOR, next_power(-(-length // SIMDGROUP)))
    units = -(-length // taken)
    most = held_steps(vector, words) if vector else 1
    full = full_gpu(device)
    if known and length >= SPLIT_ROW and 4 * number <= full:
        return _split_rows(number, units, taken, most if vector else units, full)
    lanes = min(MAX_LANES, max(SIMDGROUP, next_power(-(-units // row_steps(number, most, full)))))
    steps = -(-units // lanes) if vector and known and units <= lanes * most else 0
    return ReductionTiling(lanes, 8 if lanes == SIMDGROUP else 1, vector=taken, steps=steps)


# Threadgroups that fill a GPU: two for each of 132 multiprocessors of an H200; three for 40 cores of Apple's largest
# (a guess: no Mac was measured).
FULL_GPU = {"cuda": 264, "mps": 120}


def full_gpu(device: str) -> int:
    """Threadgroups that fill a GPU."""
    return FULL_GPU.get(device, FULL_GPU["mps"])


def next_power(n: int) -> int:
    """The least power of two that is at least `n`."""
    return 1 << max(0, n - 1).bit_length()


def held_steps(vector: int, words: int) -> int:
    """Steps of `vector` elements whose `words` words a thread can hold."""
    return max(1, min(MAX_HELD_ELEMENTS // vector, MAX_HELD_REGISTERS // (4 * max(1, words))))


def row_steps(rows: int, most: int, full: int) -> int:
    """Steps in which a thread walks a row that fits in a threadgroup: one where there are few rows, so that all loads
    are made at once; where rows fill the GPU, several, so that fewer threads wait for each other."""
    return 1 if rows < 2 * full else min(most, 4)


def _split_rows(rows: int, units: int, vector: int, most: int, full: int) -> ReductionTiling:
    """Parts of rows: as many as fill the GPU, more where a threadgroup could not hold its part."""
    lanes = POINTWISE_GROUP
    wanted = max(1, min(-(-full // rows), -(-units // lanes)))
    steps = min(most, -(-units // (lanes * wanted)))
    return ReductionTiling(lanes, 1, vector=vector, steps=steps, splits=-(-units // (lanes * steps)))


def column_tiling(rows: Any, count: Any, state_bytes: int, device: str) -> ReductionTiling:
    """How reductions of `count` elements each are spread over threads where the rows are neighbours in memory: a
    simdgroup reads 32 rows at once. A thread keeps `state_bytes`, which meet in threadgroup memory."""
    length, number = known_int(count, UNKNOWN_LENGTH), known_int(rows, MANY_ROWS)
    if device == "cpu" or length <= SHORT_ROW:
        return reduction_tiling(rows, count, device)
    width = min(SIMDGROUP, next_power(number))
    tiles = -(-number // width)
    full = full_gpu(device)
    threads = MAX_LANES if tiles < 2 * full else POINTWISE_GROUP
    slices = min(threads // width, next_power(-(-length // 8)))
    while slices > 2 and slices * width * state_bytes > MAX_COLUMN_BYTES:
        slices //= 2
    splits = min(-(-full // tiles), length // (MIN_COLUMN_SHARE * slices)) if 4 * tiles <= full else 1
    if splits < 2 or not sympy.sympify(count).is_Integer:
        return ReductionTiling(slices, width, vector=STRIDED_VECTOR, columns=True)
    steps = -(-length // (slices * STRIDED_VECTOR * splits))
    splits = -(-length // (slices * STRIDED_VECTOR * steps))
    return ReductionTiling(slices, width, vector=STRIDED_VECTOR, steps=steps, splits=splits, columns=True)


def gathering_tiling(tiling: ReductionTiling, rows: Any) -> ReductionTiling:
    """Tile of the dispatch that only combines what the parts of rows have left: a simdgroup a row."""
    if tiling.columns:
        return replace(tiling, lanes=min(8, next_power(tiling.splits)), steps=0, splits=1)
    return ReductionTiling(SIMDGROUP, min(8, known_int(rows, 8)), vector=tiling.vector)


def row_in_threadgroup(lanes: int, count: Any, vector: int, words: int) -> ReductionTiling:
    """Tile of one row that every threadgroup of `lanes` threads computes for itself."""
    length = known_int(count, 0)
    if vector and length and -(-length // (vector * lanes)) <= held_steps(vector, words):
        return ReductionTiling(lanes, 1, vector=vector, steps=-(-length // (vector * lanes)))
    return ReductionTiling(lanes, 1, vector=vector or 1)


# ---------------------------------------------------------------------------------------------- few-row products

# Up to this many rows a matrix product reads each weight once from memory and is limited by that; with more, tiles of
# the vendor's kernels reuse weights better (MLX and torch draw the line at 8 to 15 rows).
MAX_LINEAR_ROWS = 8


# Products that share threads keep an accumulator each for every row; eight fit in registers beside the loads in flight.
MAX_SHARED_ACCUMULATORS = 8


def shares_threads(rows: int, products: int) -> bool:
    """Whether so many products of one vector and shape are computed by the same threads."""
    return rows * products <= MAX_SHARED_ACCUMULATORS


@dataclass(frozen=True)
class ProductTiling:
    """`lanes` threads share an output column and walk K together, `vector` neighbouring elements each; a thread
    computes `columns_per_thread` neighbouring columns; a threadgroup holds `columns_per_group` such sets of columns.

    With 16-byte loads (`unroll` of them in flight for each column and product) the threadgroup has
    `columns_per_group * splits` simdgroups: `splits` of them share a column, each with its share of K.
    """

    lanes: int
    vector: int
    columns_per_group: int
    columns_per_thread: int
    splits: int = 1
    unroll: int = 1


# From a sweep of 112 tiles over 96 layer shapes in bfloat16 on an H200 (geometric mean over the shapes, relative to
# cuBLAS): the best tile for each shape 1.48, this rule 1.44, the best single tile (2, 2, 2) 1.39.
# (most columns, columns per threadgroup, simdgroups that share a column, loads in flight)
PRODUCT_TILES = ((1280, 2, 4, 2), (6144, 2, 2, 2), (None, 2, 2, 1))

# The same sweep with an RMSNorm of the vector in every threadgroup, over shapes that absorb one: wide threadgroups
# share its cost. It adds 0.8 to 2.5 us where a norm's own kernel takes 3.0.
NORMED_PRODUCT_TILES = ((6144, 16, 1, 2), (None, 8, 1, 1))
# Beyond, the norm in every threadgroup costs more than its own kernel: 3.6 us for 65536 columns of 2048.
MAX_NORMED_COLUMNS = 32768
MAX_NORMED_BYTES = 16384  # half of a threadgroup's memory, so that two threadgroups share a core


def why_not_absorb_row(columns: Any, depth: Any, itemsize: int, device: str) -> str:
    """Empty where every threadgroup of a one-row product by [depth, columns] weights computes its vector itself, else
    the reason why not."""
    if device == "cpu":
        return "on a CPU a threadgroup is a few columns: a norm in each costs more than its own kernel"
    width, bytes_needed = known_int(columns, MAX_NORMED_COLUMNS + 1), known_int(depth, MAX_NORMED_BYTES) * itemsize
    if width > MAX_NORMED_COLUMNS:
        return f"the product has {columns} columns: beyond {MAX_NORMED_COLUMNS} the norm's own kernel is cheaper"
    if bytes_needed > MAX_NORMED_BYTES:
        return f"the vector takes {bytes_needed} bytes of threadgroup memory, of at most {MAX_NORMED_BYTES}"
    return ""


def product_tiling(
    rows: int, products: int, columns: Any, depth: Any, layout: str, itemsize: int, device: str, normed: bool = False
) -> ProductTiling:
    """Tile of `products` few-row products of one vector by [depth, columns] weights of `itemsize` bytes an element;
    `layout` is `schedule_products.weight_layout`'s; `normed`: each threadgroup computes the vector."""
    if device == "cpu":
        # One thread a column: 16 chains fill two AVX registers and hide the add latency. Against a weight that is
        # contiguous along columns, 16 columns a thread make the same registers.
        return ProductTiling(1, 1, 4, 16) if layout == "columns" else ProductTiling(1, 16, 16, 1)
    if layout == "columns":
        return ProductTiling(1, 1, 64, 1)
    if layout == "depth":
        # Four simdgroups a threadgroup, neighbouring lanes four elements apart.
        return ProductTiling(SIMDGROUP, 4, 4, 1)
    width = known_int(columns, 0)
    tiles = NORMED_PRODUCT_TILES if normed else PRODUCT_TILES
    _, group, splits, unroll = next(tile for tile in tiles if tile[0] is None or width <= tile[0])
    word = 16 // itemsize
    while splits > 1 and known_int(depth, 0) < splits * SIMDGROUP * word // 2:
        splits //= 2
    while unroll > 1 and unroll * products * rows > 2 * MAX_SHARED_ACCUMULATORS:
        unroll //= 2
    return ProductTiling(SIMDGROUP, word, group, 1, splits, unroll)


# ---------------------------------------------------------------------------------------------- attention

# Registers of one thread hold a query and an output row of this many floats each.
MAX_HEAD_DIM = 512
MAX_DECODE_ROWS = 8
# Beyond a decode step, our untiled kernel takes small problems only; in multiply-adds. A guess, not a measurement.
MAX_SMALL_ATTENTION = 4 << 20


def attention_kernel(length: Any, dim: int, value_dim: int, heads: Any, keys: Any, device: str) -> str | None:
    """The kernel of attention with `length` query rows: "attention_decode", "attention_tiled", or None for ATen."""
    widest = max(dim, value_dim)
    if known_int(length, MAX_DECODE_ROWS + 1) <= MAX_DECODE_ROWS and widest <= MAX_HEAD_DIM:
        return "attention_decode"
    if device != "cpu" and widest <= MAX_TILED_DIM:
        return "attention_tiled"
    work = sympy.sympify(heads) * length * sympy.sympify(keys) * (dim + value_dim)
    small = work.is_Integer and work <= MAX_SMALL_ATTENTION and widest <= MAX_HEAD_DIM
    return "attention_decode" if small else None


@dataclass(frozen=True)
class AttentionTiling:
    """`lanes` threads share a query row's head dimension, `splits` such groups share its keys; a threadgroup holds
    `rows_per_group` rows."""

    lanes: int
    splits: int
    rows_per_group: int


def attention_tiling(dim: int, keys: Any, device: str) -> AttentionTiling:
    """Tile of decode attention: one thread a row on a CPU; on a GPU a simdgroup each for every eighth key."""
    return AttentionTiling(1, 1, 4) if device == "cpu" else AttentionTiling(SIMDGROUP, 8, 1)


@dataclass(frozen=True)
class AttentionSplit:
    """A threadgroup of `simdgroups` takes `queries` query rows and one of `splits` shares of the keys; a key is read by
    `lanes` lanes, 16 bytes each, and every lane has the words of `unroll` keys in flight."""

    queries: int
    lanes: int
    simdgroups: int
    unroll: int
    splits: int


# Simdgroups of a threadgroup and keys in flight. On an H200, bfloat, both kernels, us, with 264 threadgroups (torch):
# heads 32 / 8, dimension 64, 2048 keys: 8 and 2 6.8, 4 and 4 6.5, 4 and 2 6.7, 8 and 1 7.0 (7.2);
# heads 32 / 8, dimension 80, 4096 keys: 8 and 2 9.95, 16 and 2 9.99, 8 and 4 10.5, 4 and 4 10.5 (10.5);
# heads 32 / 8, dimension 128, 4096 keys: 8 and 2 10.6, 16 and 2 10.6, 8 and 4 10.9, 4 and 4 11.8 (11.6);
# heads 16 / 2, dimension 256, 2048 keys, where 4 simdgroups are the most: 4 and 4 10.3, 4 and 2 11.4 (10.3);
# heads 32 / 1, dimension 128, 32768 keys: 8 and 4 32.2, 8 and 2 34.2 (14.6).
SPLIT_SIMDGROUPS, SPLIT_UNROLL = 8, 2
# Registers of a lane hold the query and the output of so many rows, 8 floats each.
MAX_QUERIES = 4
# Keys of a split: fewer and the split costs more to combine than to read. A guess, not a measurement.
MIN_SPLIT_KEYS = 64


def attention_split(queries: int, groups: int, keys: Any, words: int, itemsize: int, device: str) -> AttentionSplit:
    """Tile of attention with `queries` query rows for each of `groups` sets of keys of `words` 16-byte words each, of
    `itemsize` bytes an element."""
    tile = min(MAX_QUERIES, next_power(queries))
    lanes = max(tile, next_power(words))
    simdgroups = SPLIT_SIMDGROUPS
    row_bytes = 4 * lanes * (16 // itemsize)  # of an output or a query in float32
    while (simdgroups + 1) * tile * row_bytes + 8 * simdgroups * tile > MAX_THREADGROUP_BYTES:
        simdgroups //= 2
    threadgroups = groups * -(-queries // tile)
    most = max(1, known_int(keys, 2048) // MIN_SPLIT_KEYS)
    splits = min(most, -(-full_gpu(device) // threadgroups))
    return AttentionSplit(tile, lanes, simdgroups, SPLIT_UNROLL, splits)


def combining_simdgroups(splits: int) -> int:
    """Simdgroups that add up the outputs of `splits` splits of one row: about four each. A guess, not a measurement."""
    return min(8, max(1, next_power(splits) // 4))


@dataclass(frozen=True)
class AttentionTiles:
    """A threadgroup of `simdgroups`, each with `blocks` blocks of eight query rows, takes `keys` keys at a time."""

    simdgroups: int
    blocks: int
    keys: int

    @property
    def rows(self) -> int:
        return 8 * self.simdgroups * self.blocks


# A simdgroup holds the queries and outputs of its rows in registers: at 256 dimensions 128 of a lane's in float32.
MAX_TILED_DIM = 256
# Tiles of keys and values together, in bytes: three quarters of a threadgroup's memory, beside weights and masks.
MAX_TILE_BYTES = 24576
# Rows of a simdgroup that share each load of a key: more in the many registers of an NVIDIA GPU. A guess, not a
# measurement, as are the four simdgroups.
TILED_BLOCKS = {"cuda": 2, "mps": 1}
MAX_BLOCKS_DIM = 128  # beyond, two blocks do not fit in 255 registers


def tiles_read_memory(operations: int, loads: int) -> bool:
    """Whether keys or values that take so many operations and loads an element are written out before tiles of queries
    read them, each tile all of them."""
    return operations > MAX_INDIRECT_OPS or loads > 1


def attention_tiles(dim: int, value_dim: int, itemsize: int, device: str) -> AttentionTiles:
    """Tile of attention with many query rows."""
    keys = 32
    while keys > 8 and keys * (tile_stride(dim) + tile_stride(value_dim)) * itemsize > MAX_TILE_BYTES:
        keys //= 2
    wide = max(dim, value_dim) * itemsize > 2 * MAX_BLOCKS_DIM
    return AttentionTiles(4, 1 if wide else TILED_BLOCKS.get(device, 1), keys)


def tile_stride(size: int) -> int:
    """Elements between the rows of a tile with `size` columns: whole 8x8 matrices, and an odd number of them, so that
    the eight rows of a matrix lie in different banks of threadgroup memory."""
    return (-(-size // 8) | 1) * 8


def attention_exponential(itemsize: int, device: str) -> str:
    """The function that weighs scores. NVIDIA's instruction is near enough for 16-bit elements and defined for
    infinities; what Apple's fast functions do with those is not documented."""
    return "fast::exp2" if device == "cuda" and itemsize == 2 else "precise::exp2"


# Scores of a gradient of attention that a graph may hold in memory, a few times over: 4 MB in float32. More come from
# an ATen call, sixteen times as many at a time. A guess, not a measurement.
MAX_GRADIENT_SCORES = 1 << 20


def gradient_in_graph(scores: int) -> bool:
    """Whether the gradient of attention with so many scores is part of the graph, and its kernels fused."""
    return scores <= MAX_GRADIENT_SCORES


def gradient_rows(heads: int, keys: int) -> int:
    """How many query rows of all heads the ATen call for the gradient takes at a time."""
    return max(1, 16 * MAX_GRADIENT_SCORES // max(1, heads * keys))


# ---------------------------------------------------------------------------------------------- CUDA graphs

# A shorter run of dispatches is launched kernel by kernel: a graph is one call, but hardly cheaper than two of these. A
# guess, not a measurement.
MIN_GRAPH_DISPATCHES = 3


# ---------------------------------------------------------------------------------------------- type checks


def instances_to_check(functions: Sequence[str]) -> list[int]:
    """Which instances of kernels have their types checked: `functions` names the kernel function of each.

    The first of every function, and of the others as many as make 16 in all, because instances of one function repeat
    its mistakes: of 96 instances of a tiled matrix product 64 took 6.8 s, 16 a quarter of it, where clang takes 1 s.
    """
    seen: dict[str, int] = {}
    ranked = []
    for number, function in enumerate(functions):
        seen[function] = seen.get(function, 0) + 1
        ranked.append((seen[function], number))
    chosen = [(rank, number) for place, (rank, number) in enumerate(sorted(ranked)) if rank == 1 or place < 16]
    return sorted(number for _, number in chosen)
