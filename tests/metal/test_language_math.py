"""Functions of the Metal standard library against numpy in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from metal_inductor.metal import compile_shader

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 2, 3, 1e-45, -1e-45, 1e-38, 3.4e38, -3.4e38, 88.7, 88.8]
    + [-87.4, -103.0, -104.0, 127.99, 128, -126, -149, -150, 1e-5, 1e30, -1e30, 1e15, 3e14],
    np.float32,
)
# function -> (reference in double, most units in the last place, range of the dense samples)
UNARY = {
    "exp": (np.exp, 1.0, (-100, 90)),
    "exp2": (np.exp2, 1.0, (-150, 128)),
    "exp10": (lambda x: 10.0**x, 1.5, (-40, 38)),
    "log": (np.log, 1.0, (0, 100)),
    "log2": (np.log2, 1.5, (0, 4)),
    "log10": (np.log10, 1.5, (0, 4)),
    "sin": (np.sin, 1.0, (-100, 100)),
    "cos": (np.cos, 1.0, (-100, 100)),
    "tan": (np.tan, 2.5, (-100, 100)),
    "tanh": (np.tanh, 1.5, (-4, 4)),
    "sinh": (np.sinh, 2.0, (-80, 80)),
    "cosh": (np.cosh, 2.0, (-80, 80)),
    "asin": (np.arcsin, 0.6, (-1, 1)),
    "acos": (np.arccos, 0.6, (-1, 1)),
    "atan": (np.arctan, 0.6, (-9, 9)),
    "asinh": (np.arcsinh, 2.5, (-9, 9)),
    "acosh": (np.arccosh, 2.5, (1, 9)),
    "atanh": (np.arctanh, 2.5, (-1, 1)),
    "sqrt": (np.sqrt, 0.5, (0, 9)),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5, (0, 9)),
    "floor": (np.floor, 0, (-9, 9)),
    "ceil": (np.ceil, 0, (-9, 9)),
    "trunc": (np.trunc, 0, (-9, 9)),
    "rint": (np.rint, 0, (-9, 9)),
    "round": (lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x), 0, (-9, 9)),
    "fabs": (np.abs, 0, (-9, 9)),
    "sign": (lambda x: np.nan_to_num(np.sign(x)), 0, (-9, 9)),
}


def samples(low: float, high: float) -> np.ndarray:
    random = np.random.default_rng(0)
    patterns = random.integers(0, 2**32, 40_000, dtype=np.uint32).view(np.float32)
    return np.concatenate([SPECIAL, patterns, random.uniform(low, high, 40_000).astype(np.float32)])


@pytest.fixture(scope="module")
def unary_library():
    text = "".join(
        f"kernel void {space}_{name}(device float* o, device const float* a, uint i [[thread_position_in_grid]]) "
        f"{{ o[i] = {scope}{name}(a[i]); }}\n"
        for name in UNARY
        for space, scope in (("default", ""), ("precise", "precise::"), ("fast", "fast::"))
    )
    return compile_shader(HEAD + text, device="cpu")


def assert_close_in_ulp(actual: np.ndarray, exact: np.ndarray, limit: float, inputs: np.ndarray) -> None:
    rounded = exact.astype(np.float32)
    finite = np.isfinite(rounded) & np.isfinite(actual)
    np.testing.assert_array_equal(actual[~finite], rounded[~finite])
    unit = np.maximum(np.spacing(np.abs(rounded[finite])).astype(np.float64), 2.0**-149)
    error = np.abs(actual[finite].astype(np.float64) - exact[finite]) / unit
    worst = error.argmax()
    assert error[worst] <= limit + 1e-6, f"{error[worst]} ulp at {inputs[finite][worst]}"


@pytest.mark.parametrize("space", ["default", "precise", "fast"])
@pytest.mark.parametrize("name", UNARY)
@np.errstate(all="ignore")
def test_unary_function(unary_library, name, space):
    reference, limit, (low, high) = UNARY[name]
    inputs = samples(low, high)
    if name in ("sin", "cos", "tan"):
        inputs = inputs[~(np.abs(inputs) > 1e14)]  # double precision is no reference beyond
    result = torch.empty(len(inputs))
    getattr(unary_library, f"{space}_{name}")(result, torch.from_numpy(inputs), threads=len(inputs), group_size=64)
    assert_close_in_ulp(result.numpy(), reference(inputs.astype(np.float64)), limit, inputs)


def test_sine_of_huge_numbers(unary_library):
    inputs = torch.tensor([1e15, 1e20, -1e22, 2.0**100, 3e38])
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workprec(400):
        exact = [float(mpmath.sin(mpmath.mpf(float(x)))) for x in inputs]
    result = torch.empty(5)
    unary_library.default_sin(result, inputs, threads=5, group_size=5)
    torch.testing.assert_close(result, torch.tensor(exact), rtol=2e-7, atol=1e-7)


BINARY = {
    "pow": (np.power, 0.51),
    "fmod": (np.fmod, 0),
    "atan2": (np.arctan2, 0.6),
    "copysign": (np.copysign, 0),
    "fmin": (np.fmin, 0),
    "fmax": (np.fmax, 0),
    "max": (np.fmax, 0),
    "nextafter": (None, 0),
    "fdim": (lambda x, y: np.where(x <= y, 0.0, x - y), 0.5),
}


@pytest.mark.parametrize("name", BINARY)
@np.errstate(all="ignore")
def test_binary_function(name):
    library = compile_shader(
        f"{HEAD}kernel void k(device float* o, device const float* a, device const float* b, "
        f"uint i [[thread_position_in_grid]]) {{ o[i] = {name}(a[i], b[i]); }}",
        device="cpu",
    )
    random = np.random.default_rng(1)
    x, y = (grid.ravel() for grid in np.meshgrid(SPECIAL, SPECIAL))
    x = np.concatenate([x, random.uniform(-20, 20, 20_000)]).astype(np.float32)
    y = np.concatenate([y, random.uniform(-5, 5, 10_000), random.integers(-9, 9, 10_000)]).astype(np.float32)
    result = torch.empty(len(x))
    library.k(result, torch.from_numpy(x), torch.from_numpy(y), threads=len(x), group_size=128)
    reference, limit = BINARY[name]
    if name == "nextafter":
        np.testing.assert_array_equal(result.numpy(), np.nextafter(x, y))
        return
    assert_close_in_ulp(result.numpy(), reference(x.astype(np.float64), y.astype(np.float64)), limit, x)


def test_vector_functions_agree_with_scalar_ones():
    names = ("exp", "log", "sin", "tanh", "sqrt", "floor", "fabs", "fract", "asin", "atan", "cosh", "asinh")
    text = "".join(
        f"kernel void v_{n}(device float4* o, device const float4* a, uint i [[thread_position_in_grid]]) "
        f"{{ o[i] = {n}(a[i]); }}\n"
        f"kernel void s_{n}(device float* o, device const float* a, uint i [[thread_position_in_grid]]) "
        f"{{ o[i] = {n}(a[i]); }}\n"
        for n in names
    )
    library = compile_shader(HEAD + text, device="cpu")
    inputs = torch.from_numpy(samples(-9, 9)[:40_000])
    for name in names:
        vector, scalar = torch.empty(len(inputs)), torch.empty(len(inputs))
        getattr(library, f"v_{name}")(vector, inputs, threads=len(inputs) // 4, group_size=64)
        getattr(library, f"s_{name}")(scalar, inputs, threads=len(inputs), group_size=64)
        assert torch.equal(vector.nan_to_num(), scalar.nan_to_num()), name


@pytest.mark.parametrize(("metal", "dtype"), [("half", torch.float16), ("bfloat", torch.bfloat16)])
def test_conversion_rounds_to_nearest_even(metal, dtype):
    library = compile_shader(
        f"{HEAD}kernel void narrow(device {metal}* o, device const float* a, uint i [[thread_position_in_grid]]) "
        f"{{ o[i] = {metal}(a[i]); }}\n"
        f"kernel void widen(device float* o, device const {metal}* a, uint i [[thread_position_in_grid]]) "
        f"{{ o[i] = float(a[i]); }}\n"
        f"kernel void narrow4(device {metal}4* o, device const float4* a, uint i [[thread_position_in_grid]]) "
        f"{{ o[i] = {metal}4(a[i]); }}\n",
        device="cpu",
    )
    patterns = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32)
    ties = (np.arange(60_000, dtype=np.uint32) << 16) | 0x8000 | (np.arange(60_000, dtype=np.uint32) % 3)
    values = torch.from_numpy(np.concatenate([patterns, ties]).view(np.float32).copy())
    for name, per_thread in (("narrow", 1), ("narrow4", 4)):
        narrow = torch.empty(len(values), dtype=dtype)
        getattr(library, name)(narrow, values, threads=len(values) // per_thread, group_size=64)
        torch.testing.assert_close(narrow, values.to(dtype), rtol=0, atol=0, equal_nan=True)
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    wide = torch.empty(len(every))
    library.widen(wide, every, threads=len(every), group_size=64)
    torch.testing.assert_close(wide, every.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("clz(1u) * 100 + ctz(8u)", 3103),
        ("clz(ushort(1)) + clz(0)", 47),
        ("popcount(0xf0f0u)", 8),
        ("reverse_bits(1u) >> 24", 128),
        ("rotate(0x80000001u, 4u)", 24),
        ("mulhi(0x80000000u, 6u)", 3),
        ("addsat(uchar(250), uchar(9))", 255),
        ("subsat(2u, 3u)", 0),
        ("absdiff(-5, 7)", 12),
        ("abs(-5)", 5),
        ("clamp(9, 1, 5)", 5),
        ("median3(7, 1, 5)", 5),
        ("max3(7, 1, 5) * 10 + min3(7, 1, 5)", 71),
        ("extract_bits(0xabcdu, 4, 8)", 0xBC),
        ("insert_bits(0xffffu, 0u, 4, 8)", 0xF00F),
        ("hadd(7, 8) * 10 + rhadd(7, 8)", 78),
        ("mad24(3, 4, 5)", 17),
        ("int(mulhi(0x8000000000000000ul, 6ul))", 3),
        ("select(1, 2, true)", 2),
        ("int(ldexp(3.0f, 4))", 48),
        ("ilogb(0.25f) + 10", 8),
        ("int(isnan(NAN)) * 4 + isinf(-INFINITY) * 2 + isfinite(1.0f)", 7),
        ("int(mix(2.0f, 4.0f, 0.5f) + step(1.0f, 2.0f) + saturate(7.0f) + smoothstep(0.0f, 1.0f, 2.0f))", 6),
        ("int(signbit(-0.0f)) + isnormal(1e-40f)", 1),
        ("int(dot(float3(1, 2, 3), float3(4, 5, 6)) + length(float2(3, 4)))", 37),
        ("int(cross(float3(1, 0, 0), float3(0, 1, 0)).z * 5)", 5),
        ("int(numeric_limits<float>::max() > 3e38f) + numeric_limits<int>::max() % 10", 8),
        ("int(fma(3.0f, 4.0f, 5.0f))", 17),
    ],
)
def test_integer_and_common_functions(expression, expected):
    library = compile_shader(f"{HEAD}kernel void k(device int* o) {{ o[0] = {expression}; }}", device="cpu")
    result = torch.zeros(1, dtype=torch.int32)
    library.k(result, threads=1, group_size=1)
    assert result.item() == expected


def test_products_and_sums_are_not_contracted():
    """Metal's safe math rounds the product before the sum; only fma() does not."""
    library = compile_shader(
        HEAD + "kernel void k(device float* o, device const float* a, uint i [[thread_position_in_grid]]) "
        "{ o[2 * i] = a[0] * a[1] + a[2]; o[2 * i + 1] = fma(a[0], a[1], a[2]); }",
        device="cpu",
    )
    a, c = np.float32(1 + 2.0**-12), np.float32(-1 - 2.0**-11)
    result = torch.empty(2)
    library.k(result, torch.tensor([a, a, c]), threads=1, group_size=1)
    assert result.tolist() == [0.0, 2.0**-24]
