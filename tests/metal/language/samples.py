"""Inputs for tables: the ends of each type's range, neighbours of powers of two, and random bits."""

from __future__ import annotations

import numpy as np

from tests.metal.language.tables import DTYPES, Type


def integers(metal: str, seed: int, count: int = 64) -> tuple[str, np.ndarray]:
    """Values of an integer type, scalar or vector."""
    kind = Type.named(metal)
    dtype = DTYPES[kind.scalar]
    limits = np.iinfo(dtype)
    random = np.random.default_rng([seed, limits.bits, kind.components])
    edges = [limits.min, limits.max, limits.min + 1, limits.max - 1, 0, 1, 2, 7, limits.max // 2]
    total = count * kind.components
    bits = random.integers(limits.min, limits.max, total, dtype=dtype, endpoint=True)
    shifted = bits >> random.integers(0, limits.bits, total).astype(dtype)  # of every magnitude
    values = np.where(random.random(total) < 0.3, random.choice(np.array(edges, dtype), total), shifted)
    return metal, values.reshape(count, -1) if kind.components > 1 else values


def floats(metal: str, low: float, high: float, seed: int = 0, count: int = 512) -> tuple[str, np.ndarray]:
    """Values of a floating-point type between two bounds, scalar or vector."""
    kind = Type.named(metal)
    values = np.random.default_rng([seed, kind.components]).uniform(low, high, count * kind.components)
    values = values.astype(DTYPES.get(kind.scalar, np.float32))
    return metal, values.reshape(count, -1) if kind.components > 1 else values


SPECIAL_FLOATS = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 1.5, -1.5, 2, 2.5, -2.5, 3, 1e-45, -1e-45, 1e-38, -1e-38]
    + [1.1754944e-38, 3.4028235e38, -3.4028235e38, 88.7, -87.4, 127.99, -149, 1e-5, 1e30, -1e30, 16777216, 8388607.5],
    np.float32,
)


def special_pairs() -> tuple[np.ndarray, np.ndarray]:
    """Every pair of special floats."""
    x, y = np.meshgrid(SPECIAL_FLOATS, SPECIAL_FLOATS)
    return x.ravel(), y.ravel()
