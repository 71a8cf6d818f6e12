"""<metal_simdgroup> and <metal_quadgroup>: two simdgroups of 32 lanes, against numpy's view of the lanes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.metal.language.samples import integers
from tests.metal.language.tables import DTYPES, Table, Type

LANES = 64
WIDTHS = {"simd": 32, "quad": 4}
LANE = np.arange(LANES)


def small(metal: str, seed: int = 0, high: int = 9) -> tuple[str, np.ndarray]:
    """Small whole numbers: sums of every order are exact."""
    kind = Type.named(metal)
    values = np.random.default_rng(seed).integers(1, high, (LANES, kind.components))
    values = values.astype(DTYPES.get(kind.scalar, np.float32))
    return metal, values[:, 0] if kind.components == 1 else values


def few(metal: str) -> tuple[str, np.ndarray]:
    """Ones and some twos: products stay small."""
    kind, values = small(metal)
    values[:] = 1
    values[::9] = 2
    return kind, values


def folded(function: Callable, width: int) -> Callable:
    """The same result in every lane of a group."""

    def apply(a: np.ndarray) -> np.ndarray:
        groups = a.reshape(LANES // width, width, -1)
        result = np.stack([function(g.astype(object)) for g in groups])[:, None].repeat(width, 1)
        return result.reshape(a.shape).astype(a.dtype)

    return apply


def scanned(function: np.ufunc, width: int, exclusive: bool) -> Callable:
    def apply(a: np.ndarray) -> np.ndarray:
        groups = a.reshape(LANES // width, width, -1)
        result = np.stack([function.accumulate(g, dtype=a.dtype) for g in groups])
        if exclusive:
            result = np.concatenate([np.full_like(result[:, :1], function.identity), result[:, :-1]], 1)
        return result.reshape(a.shape)

    return apply


def moved(source: np.ndarray) -> Callable:
    return lambda a, *_: a[source]


TABLE = Table(group=LANES)
FOLDS = {
    "sum": (lambda g: g.sum(0), small),
    "product": (lambda g: g.prod(0), few),
    "min": (lambda g: g.min(0), small),
    "max": (lambda g: g.max(0), small),
}
BITS = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
for group, width in WIDTHS.items():
    for name, (function, values) in FOLDS.items():
        for metal in ("float", "half", "int", "uint", "short", "uchar", "float4", "int2", "half3"):
            limit = {"high": 5} if metal == "uchar" and values is small else {}
            TABLE.row(metal, f"{group}_{name}(a)", folded(function, width), a=values(metal, **limit))
    for name, ufunc in BITS.items():
        for metal in ("int", "uint", "ushort", "char", "uint3"):
            reference = folded(lambda g, f=ufunc: f.reduce(g, 0), width)
            TABLE.row(metal, f"{group}_{name}(a)", reference, a=integers(metal, 1))
    for name, ufunc, values in (("sum", np.add, small), ("product", np.multiply, few)):
        for kind in ("inclusive", "exclusive"):
            for metal in ("float", "int", "ushort", "half2"):
                reference = scanned(ufunc, width, kind == "exclusive")
                TABLE.row(metal, f"{group}_prefix_{kind}_{name}(a)", reference, a=values(metal))

# every permutation as the lane that each lane reads from; what an up or down shuffle leaves alone keeps its own
for group, width in WIDTHS.items():
    first, local = LANE // width * width, LANE % width
    permutations = {
        f"{group}_broadcast(a, 3)": first + 3,
        f"{group}_broadcast_first(a)": first,
        f"{group}_shuffle(a, 2)": first + 2,
        f"{group}_shuffle(a, ushort({width - 1} - lane % {width}))": first + width - 1 - local,
        f"{group}_shuffle_xor(a, 1)": LANE ^ 1,
        f"{group}_shuffle_xor(a, 3)": LANE ^ 3,
        f"{group}_shuffle_up(a, 1)": first + np.where(local < 1, local, local - 1),
        f"{group}_shuffle_down(a, 2)": first + np.where(local + 2 >= width, local, local + 2),
        f"{group}_shuffle_rotate_up(a, 1)": first + (local - 1) % width,
        f"{group}_shuffle_rotate_down(a, 3)": first + (local + 3) % width,
    }
    for expression, source in permutations.items():
        for metal in ("float", "ushort", "int3"):
            TABLE.row(metal, expression, moved(source), a=integers(metal, 2) if metal != "float" else small(metal))

for group, width, modulos in (("simd", 32, (32, 16, 8, 2)), ("quad", 4, (4, 2))):
    for modulo in modulos:
        suffix = "" if modulo == width else f", {modulo}"
        block, local = LANE // modulo * modulo, LANE % modulo
        down, up = block + (local + 1) % modulo, block + (local - 1) % modulo
        for metal in ("float", "uint", "half2"):
            inputs = {"a": small(metal), "b": small(metal, 1)}
            rows = np.where if Type.named(metal).components == 1 else lambda c, x, y: np.where(c[:, None], x, y)
            TABLE.row(
                metal,
                f"{group}_shuffle_and_fill_down(a, b, 1{suffix})",
                lambda a, b, w=rows, s=down, m=modulo, at=local: w(at + 1 >= m, b[s], a[s]),
                **inputs,
            )
            TABLE.row(
                metal,
                f"{group}_shuffle_and_fill_up(a, b, 1{suffix})",
                lambda a, b, w=rows, s=up, at=local: w(at < 1, b[s], a[s]),
                **inputs,
            )

FLAG = ("int", (np.random.default_rng(5).integers(0, 2, LANES)).astype(np.int32))
BALLOTS = {32: [sum(int(v) << n for n, v in enumerate(FLAG[1][b : b + 32])) for b in (0, 32)]}
BALLOTS[4] = [sum(int(v) << n for n, v in enumerate(FLAG[1][b : b + 4])) for b in range(0, LANES, 4)]
TABLE.row("ulong", "ulong(simd_ballot(a)) & 0xffffffffu", np.repeat(BALLOTS[32], 32), a=FLAG)
TABLE.row("uint", "uint(quad_ballot(a))", np.repeat(BALLOTS[4], 4), a=FLAG)
TABLE.row("bool", "simd_ballot(a).any()", np.ones(LANES, bool), a=FLAG)
TABLE.row("bool", "quad_ballot(a).all()", np.repeat([b == 15 for b in BALLOTS[4]], 4), a=FLAG)
TABLE.row("bool", "simd_active_threads_mask().all()", np.ones(LANES, bool), a=FLAG)
TABLE.row("uint", "uint(quad_active_threads_mask())", np.full(LANES, 15), a=FLAG)
TABLE.row("bool", "simd_any(a > 1)", np.zeros(LANES, bool), a=FLAG)
TABLE.row("bool", "simd_all(a < 2)", np.ones(LANES, bool), a=FLAG)
TABLE.row("bool", "quad_any(a)", np.repeat([b != 0 for b in BALLOTS[4]], 4), a=FLAG)
TABLE.row("bool", "quad_all(a)", np.repeat([b == 15 for b in BALLOTS[4]], 4), a=FLAG)
TABLE.row("bool", "simd_is_first()", LANE % 32 == 0, a=FLAG)
TABLE.row("bool", "quad_is_first()", LANE % 4 == 0, a=FLAG)
WITH_NAN = ("float", np.where(LANE % 5 == 0, np.nan, LANE).astype(np.float32))
TABLE.row("float", "simd_max(a)", folded(lambda g: np.nanmax(g.astype(float), 0), 32), a=WITH_NAN, label="max and NaN")

# Lanes that take different ways: an operation sees the lanes that are with it.
ODD = LANE % 2 == 1
DIVERGED = {
    "simd_sum(1)": np.full(LANES, 16),
    "simd_prefix_exclusive_sum(1)": LANE % 32 // 2,
    "int(simd_broadcast_first(lane))": LANE % 2,
    "int(popcount(uint(ulong(simd_ballot(true)))))": np.full(LANES, 16),
    "int(simd_is_first())": (LANE % 32 < 2).astype(int),
    "quad_sum(1)": np.full(LANES, 2),
    "int(simd_shuffle_xor(lane, 2))": LANE % 32 ^ 2,
    "int(simd_all(lane % 2 == 1))": None,
    "int(quad_is_first())": (LANE % 4 < 2).astype(int),
    "quad_prefix_inclusive_sum(1)": LANE % 4 // 2 + 1,
    "int(uint(quad_active_threads_mask()))": np.where(ODD, 0b1010, 0b0101),
}
for expression, expected in DIVERGED.items():
    values = np.where(ODD, 1, 0) if expected is None else expected
    before = f"int r0; if (lane & 1) r0 = {expression}; else r0 = -1 - ({expression});"
    TABLE.row("int", "r0", np.where(ODD, values, -1 - values), before=before, label=f"diverged {expression}")
TABLE.row("int", "s", LANE % 32 % 7,
          before="int s = 0; for (int n = 0; n < int(lane) % 7; ++n) s += simd_sum(1) > 0 ? 1 : 100;",
          label="loops of different lengths")  # fmt: skip


@TABLE.test()
def test_lanes(metal_device, number):
    TABLE.check(metal_device, number)
