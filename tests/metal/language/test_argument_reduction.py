"""sin, cos and tan where the reduction of their argument is hard, and remainders of any two numbers."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch

from metal_inductor.metal import compile_shader

SOURCE = "#include <metal_stdlib>\nusing namespace metal;\n" + "".join(
    f"kernel void {name}_of(device float *out, device const float *x, device const float *y, "
    f"uint i [[thread_position_in_grid]]) {{ out[i] = {name}({arguments}); }}\n"
    for name, arguments in (("sin", "x[i]"), ("cos", "x[i]"), ("tan", "x[i]"), ("fmod", "x[i], y[i]"))
)


@pytest.fixture(scope="module")
def library():
    return compile_shader(SOURCE, device="cpu")


def run(library, name: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    out = torch.empty(len(x))
    getattr(library, f"{name}_of")(out, torch.from_numpy(x), torch.from_numpy(y), threads=len(x), group_size=64)
    return out.numpy()


def hard_angles() -> np.ndarray:
    """Numbers next to multiples of pi/2, next to powers of two, and of every size."""
    random = np.random.default_rng(3)
    with mpmath.workprec(300):
        multiples = [int(k) for k in random.integers(1, 2**20, 150)] + [int(2**e) + 1 for e in range(126)]
        near = np.array([float(k * mpmath.pi / 2) for k in multiples], np.float32)
    powers = np.float32(2.0) ** np.arange(-149, 128, dtype=np.float32)
    any_size = random.integers(0, 0x7F800000, 500, dtype=np.uint32).view(np.float32)
    positive = np.concatenate([near, powers, np.nextafter(powers, np.float32(0)), any_size])
    # the float nearest to a multiple of pi/2 of all, and the largest
    positive = np.append(positive, [np.float32(16367173 * 2.0**72), np.finfo(np.float32).max])
    return np.concatenate([positive, -positive]).astype(np.float32)


@pytest.mark.parametrize(("name", "limit"), [("sin", 1.0), ("cos", 1.0), ("tan", 2.5)])
def test_angles_of_every_size_keep_their_last_place(library, name, limit):
    x = hard_angles()
    actual = run(library, name, x, x)
    with mpmath.workprec(300):
        for angle, result in zip(x, actual, strict=True):
            exact = getattr(mpmath, name)(mpmath.mpf(float(angle)))
            unit = max(float(np.spacing(np.float32(abs(float(exact))))), 2.0**-149)
            assert abs(float((mpmath.mpf(float(result)) - exact) / unit)) <= limit, (angle, result)


def test_sine_and_tangent_keep_the_sign_of_zero_and_infinities_have_none(library):
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], np.float32)
    for name in ("sin", "tan"):
        actual = run(library, name, x, x)
        np.testing.assert_array_equal(np.signbit(actual[:2]), [False, True])
        assert np.isnan(actual[2:]).all()


def test_remainders_of_any_two_numbers_are_exact(library):
    random = np.random.default_rng(4)
    patterns = random.integers(0, 2**32, (2, 200_000), dtype=np.uint32).view(np.float32)
    quotients = np.float32(2.0) ** random.integers(0, 90, 100_000).astype(np.float32)
    divisors = random.uniform(0.1, 3, 100_000).astype(np.float32)
    multiples = divisors * np.round(random.uniform(0, 5000, 100_000)).astype(np.float32)
    x = np.concatenate([patterns[0], divisors * quotients, multiples, np.nextafter(multiples, np.float32(0))])
    y = np.concatenate([patterns[1], divisors[::-1], divisors, divisors])
    with np.errstate(invalid="ignore"):
        expected = np.fmod(x, y)
    actual = run(library, "fmod", x, y)
    np.testing.assert_array_equal(actual, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(actual[number]), np.signbit(expected[number]))
