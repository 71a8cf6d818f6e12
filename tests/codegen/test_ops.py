"""Every scalar operation, compiled and run on the CPU, gives torch's numbers."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch

from metal_inductor import ir
from metal_inductor.codegen import ops
from metal_inductor.metal import compile_shader

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, -2.5, 3.5, 1e-30, 3e38, -3e38]

BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "maximum": torch.maximum, "minimum": torch.minimum,
    "fmax": torch.fmax, "fmin": torch.fmin, "remainder": torch.remainder, "fmod": torch.fmod,
    "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
    "floor_div": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc_div": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
}  # fmt: skip
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "signbit")
INTEGER_BINARY = {
    "bitwise_and": torch.bitwise_and, "bitwise_or": torch.bitwise_or, "bitwise_xor": torch.bitwise_xor,
    "shift_left": torch.bitwise_left_shift, "shift_right": torch.bitwise_right_shift, "gcd": torch.gcd,
}  # fmt: skip
UNARY = {
    "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "floor": torch.floor, "ceil": torch.ceil,
    "trunc": torch.trunc, "round": torch.round, "isnan": torch.isnan, "isinf": torch.isinf,
    "isfinite": torch.isfinite, "signbit": torch.signbit,
}  # fmt: skip
FUNCTIONS = {
    "exp": (torch.exp, -20, 20), "exp2": (torch.exp2, -20, 20), "expm1": (torch.expm1, -20, 80),
    "log": (torch.log, 0, 10), "log2": (torch.log2, 0, 10), "log10": (torch.log10, 0, 10),
    "log1p": (torch.log1p, -0.999, 10), "sqrt": (torch.sqrt, 0, 10), "rsqrt": (torch.rsqrt, 0.01, 10),
    "sin": (torch.sin, -100, 100), "cos": (torch.cos, -100, 100), "tan": (torch.tan, -1.5, 1.5),
    "asin": (torch.asin, -1, 1), "acos": (torch.acos, -1, 1), "atan": (torch.atan, -9, 9),
    "sinh": (torch.sinh, -9, 9), "cosh": (torch.cosh, -9, 9), "tanh": (torch.tanh, -9, 9),
    "asinh": (torch.asinh, -9, 9), "acosh": (torch.acosh, 1, 9), "atanh": (torch.atanh, -1, 1),
    "sigmoid": (torch.sigmoid, -30, 30), "erf": (torch.erf, -5, 5), "erfc": (torch.erfc, -5, 9),
    "erfcx": (torch.special.erfcx, -5, 50), "erfinv": (torch.erfinv, -1, 1), "lgamma": (torch.lgamma, 0.01, 50),
    "digamma": (torch.digamma, 0.01, 50), "trigamma": (lambda x: torch.polygamma(1, x), 0.01, 50),
    "i0": (torch.i0, -20, 20), "i0e": (torch.special.i0e, -20, 20), "i1": (torch.special.i1, -20, 20),
    "i1e": (torch.special.i1e, -20, 20), "ndtri": (torch.special.ndtri, 0, 1),
    "log_ndtr": (torch.special.log_ndtr, -20, 3), "spherical_bessel_j0": (torch.special.spherical_bessel_j0, -20, 20),
    "bessel_j0": (torch.special.bessel_j0, -20, 20), "bessel_j1": (torch.special.bessel_j1, -20, 20),
    "bessel_y0": (torch.special.bessel_y0, 0.1, 20), "bessel_y1": (torch.special.bessel_y1, 0.1, 20),
    "bessel_k0": (torch.special.modified_bessel_k0, 0.01, 20),
    "bessel_k1": (torch.special.modified_bessel_k1, 0.01, 20),
    "bessel_k0e": (torch.special.scaled_modified_bessel_k0, 0.01, 20),
    "bessel_k1e": (torch.special.scaled_modified_bessel_k1, 0.01, 20),
}  # fmt: skip


def _loaded(name: str, dtype: torch.dtype) -> str:
    stored = f"{name}[i]"
    return f"float({stored})" if dtype in FLOATS[1:] else stored


def _kernel(key: str, op: str, sources: tuple[torch.dtype, ...], result: torch.dtype) -> str:
    node = ir.op(op, *(ir.load(f"in{k}", 0, dtype) for k, dtype in enumerate(sources)), dtype=result)
    value = ops.format_op(node, [_loaded(f"in{k}", dtype) for k, dtype in enumerate(sources)])
    inputs = "".join(
        f", device const {ops.METAL_TYPES[dtype]}* in{k} [[buffer({k + 1})]]" for k, dtype in enumerate(sources)
    )
    return (
        f"kernel void {key}(device {ops.METAL_TYPES[result]}* out [[buffer(0)]]{inputs}, "
        f"uint i [[thread_position_in_grid]]) {{ out[i] = {ops.METAL_TYPES[result]}({value}); }}"
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _cases() -> dict[str, tuple[str, tuple[torch.dtype, ...], torch.dtype]]:
    cases = {}

    def add(op: str, sources: tuple[torch.dtype, ...], result: torch.dtype | None = None) -> None:
        result = torch.bool if op in COMPARISONS else result or sources[0]
        cases["_".join([op, *map(_name, sources), "to", _name(result)])] = (op, sources, result)

    for dtype in (*INTEGERS, *FLOATS):
        for op in BINARY:
            add(op, (dtype, dtype))
        for op in UNARY:
            add(op, (dtype,))
        for target in (*INTEGERS, *FLOATS, torch.bool):
            add("cast", (dtype,), target)
        add("pow", (dtype, dtype))
    for dtype in INTEGERS:
        for op in INTEGER_BINARY:
            add(op, (dtype, dtype))
    for op in FUNCTIONS:
        add(op, (torch.float32,))
    add("nextafter", (torch.float32, torch.float32))
    return cases


@functools.cache
def _library():
    cases = _cases()
    kernels = [_kernel(key, *case) for key, case in cases.items()]
    helpers = ops.functions(op for op, _, _ in cases.values())
    return compile_shader("\n".join(["#include <metal_stdlib>", helpers, *kernels]), device="cpu")


def run(op: str, *inputs: torch.Tensor, result: torch.dtype | None = None) -> torch.Tensor:
    result = torch.bool if op in COMPARISONS else result or inputs[0].dtype
    out = torch.empty(inputs[0].shape, dtype=result)
    key = "_".join([op, *(_name(tensor.dtype) for tensor in inputs), "to", _name(result)])
    getattr(_library(), key)(out, *inputs)
    return out


def samples(dtype: torch.dtype, count: int = 500, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        values = torch.randn(count, generator=generator) * 4
        extreme = torch.tensor(SPECIAL)[torch.randint(len(SPECIAL), (count // 4,), generator=generator)]
        return torch.cat([values, extreme]).to(dtype)
    info = torch.iinfo(dtype)
    small = torch.randint(-9 if info.min else 0, 10, (count,), generator=generator)
    extreme = torch.tensor([info.min, info.min + 1, info.max, info.max - 1, 0, 1])
    return torch.cat([small, extreme[torch.randint(6, (count // 4,), generator=generator)]]).to(dtype)


def nonzero(values: torch.Tensor) -> torch.Tensor:
    return torch.where(values == 0, torch.ones_like(values), values)


@pytest.mark.parametrize("dtype", (*INTEGERS, *FLOATS), ids=_name)
@pytest.mark.parametrize("op", BINARY)
def test_binary_operation_matches_eager(op, dtype):
    a, b = samples(dtype, seed=1), samples(dtype, seed=2)
    if op in ("remainder", "fmod", "floor_div", "trunc_div") and not dtype.is_floating_point:
        b = nonzero(b)
        keep = ~((a == torch.iinfo(dtype).min) & (b == -1)) if torch.iinfo(dtype).min else b != 0
        a, b = a[keep], b[keep]
    if op in ("remainder", "fmod") and dtype.is_floating_point:
        a, b = a[a.abs() < 1e4], b[: (a.abs() < 1e4).sum()]
    expected = BINARY[op](a, b)
    if dtype in FLOATS[1:] and op == "trunc_div":  # eager rounds the quotient before it truncates it
        expected = BINARY[op](a.float(), b.float()).to(dtype)
    torch.testing.assert_close(run(op, a, b), expected, equal_nan=True)


@pytest.mark.parametrize("dtype", INTEGERS, ids=_name)
@pytest.mark.parametrize("op", ["floor_div", "trunc_div", "remainder", "fmod"])
def test_integer_division_by_zero_does_not_trap(op, dtype):
    a = samples(dtype)
    assert not run(op, a, torch.zeros_like(a)).any()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=_name)
def test_most_negative_integer_divided_by_minus_one_wraps(dtype):
    a = torch.tensor([torch.iinfo(dtype).min], dtype=dtype)
    assert torch.equal(run("trunc_div", a, torch.tensor([-1], dtype=dtype)), a)


@pytest.mark.parametrize("dtype", INTEGERS, ids=_name)
@pytest.mark.parametrize("op", INTEGER_BINARY)
def test_bit_operation_matches_eager(op, dtype):
    a, b = samples(dtype, seed=3), samples(dtype, seed=4)
    if op == "gcd":
        a, b = a.clamp(min=torch.iinfo(dtype).min + 1), b.clamp(min=torch.iinfo(dtype).min + 1)
    if op.startswith("shift"):
        b = b.clamp(-2, 70)
    torch.testing.assert_close(run(op, a, b), INTEGER_BINARY[op](a, b))


@pytest.mark.parametrize("dtype", (*INTEGERS, *FLOATS), ids=_name)
@pytest.mark.parametrize("op", UNARY)
def test_unary_operation_matches_eager(op, dtype):
    x = samples(dtype, seed=5)
    torch.testing.assert_close(run(op, x), UNARY[op](x), equal_nan=True)


@pytest.mark.parametrize("dtype", (*INTEGERS, *FLOATS), ids=_name)
def test_pow_matches_eager(dtype):
    base = samples(dtype, seed=6)
    exponent = torch.arange(len(base)).remainder(6).to(dtype)
    torch.testing.assert_close(run("pow", base, exponent), torch.pow(base, exponent), equal_nan=True)


@pytest.mark.parametrize("target", (*INTEGERS, *FLOATS, torch.bool), ids=_name)
@pytest.mark.parametrize("source", (*INTEGERS, *FLOATS), ids=_name)
def test_cast_matches_eager(source, target):
    x = samples(source, seed=7)
    if source.is_floating_point and not target.is_floating_point and target != torch.bool:
        x = x[(x.abs() < 2**31) & ((x >= 0) | (target != torch.uint8))]  # beyond, C leaves the result open
    torch.testing.assert_close(run("cast", x, result=target), x.to(target), equal_nan=True)


@pytest.mark.parametrize("op", FUNCTIONS)
def test_function_is_as_accurate_as_eager(op):
    reference, low, high = FUNCTIONS[op]
    x = torch.from_numpy(np.random.default_rng(0).uniform(low, high, 4000).astype(np.float32))
    exact = reference(x.double())
    ulp = torch.from_numpy(np.spacing(np.abs(exact.numpy()).astype(np.float32)).astype(np.float64))
    # nine elements in ten: close to a zero of the function an ulp of the result says nothing
    ours, eager = (((value.double() - exact).abs() / ulp).quantile(0.9).item() for value in (run(op, x), reference(x)))
    assert ours <= 1.5 * eager + 0.6, f"error {ours:.2f} ulp, eager's {eager:.2f}"


@pytest.mark.parametrize("op", [op for op in FUNCTIONS if op not in ("trigamma", "bessel_y0", "bessel_y1")])
def test_function_of_special_values_matches_eager(op):
    x = torch.tensor([value for value in SPECIAL if abs(value) != 3e38])
    torch.testing.assert_close(run(op, x), FUNCTIONS[op][0](x), equal_nan=True)


def test_nextafter_matches_eager():
    a, b = samples(torch.float32, seed=8), samples(torch.float32, seed=9)
    assert torch.equal(run("nextafter", a, b).view(torch.int32), torch.nextafter(a, b).view(torch.int32))


@pytest.mark.parametrize("value", [0.1, 1.0, -2.5, 1e-45, 3.4028234663852886e38, 1e10, 16777217.0, -0.0, 1 / 3])
def test_float_literal_is_exact(value):
    text = ops.format_constant(value, torch.float32).strip("()").removesuffix("f")
    assert np.float32(float(text)).tobytes() == np.float32(value).tobytes()


def test_float_literals_without_digits():
    assert ops.format_constant(math.nan, torch.float32) == "NAN"
    assert ops.format_constant(-math.inf, torch.float16) == "(-INFINITY)"
    assert ops.format_constant(1e300, torch.float32) == "INFINITY"


def test_integer_out_of_range_names_the_range():
    with pytest.raises(ValueError, match="-128 to 127"):
        ops.format_constant(300, torch.int8)


def test_unknown_operation_lists_the_valid_ones():
    with pytest.raises(KeyError, match="valid: abs"):
        ops.format_op(ir.op("blur", ir.constant(1, torch.float32), dtype=torch.float32), ["x"])


def test_functions_come_once_with_their_dependencies_first():
    text = ops.functions(["lgamma", "erfinv", "lgamma"])
    assert text.count("inline float mi_lgamma(") == 1
    assert text.index("mi_horner(float") < text.index("mi_lgamma_positive") and "mi_i0" not in text
