"""Elementwise ops, compiled, give eager's values, dtypes and strides without an ATen call."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tests.lowerings.compiled import check, gradients

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def name(item):
    return str(item).removeprefix("torch.")


def values(*shape: int, dtype: torch.dtype = torch.float32, low: float = -3.0, high: float = 3.0) -> torch.Tensor:
    if dtype.is_floating_point:
        return (torch.rand(*shape) * (high - low) + low).to(dtype)
    if dtype == torch.bool:
        return torch.rand(*shape) > 0.5
    return torch.randint(int(low) if torch.iinfo(dtype).min else 0, int(high) + 7, shape).to(dtype)


PAIRS = [
    (torch.float32, torch.float32), (torch.bfloat16, torch.float32), (torch.float16, torch.bfloat16),
    (torch.float16, torch.int64), (torch.int8, torch.uint8), (torch.uint8, torch.int32), (torch.bool, torch.int16),
    (torch.bool, torch.bool), (torch.int64, torch.float32),
]  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "-".join(map(name, pair)))
def test_arithmetic_promotes_as_eager(pair):
    a, b = values(3, 5, dtype=pair[0]), values(5, dtype=pair[1])

    def function(x, y):
        return x + y, x * y, x / (y + 20), torch.maximum(x, y), x == y, x < y, x != 1.5, torch.where(x > 0, x, y)

    check(function, a, b, tolerance=2e-2 if torch.float16 in pair or torch.bfloat16 in pair else 1e-6)


@pytest.mark.parametrize("dtype", (*INTEGERS, *FLOATS, torch.bool), ids=name)
def test_zero_dimensional_tensors_do_not_promote(dtype):
    check(lambda x, y: (x + y, x * y, x > y), values(4, dtype=dtype), torch.tensor(2.5), tolerance=2e-2)


@pytest.mark.parametrize("dtype", (*INTEGERS, *FLOATS), ids=name)
def test_numbers_take_the_dtype_that_eager_gives_them(dtype):
    def function(x):
        return x + 1, x * 2.5, 3 - x, torch.rsub(x, 2, alpha=2), x.add(x, alpha=3), x // 3, x % 3, x == 2, x.clamp(0, 5)

    check(function, values(17, dtype=dtype), tolerance=2e-2 if dtype in FLOATS[1:] else 1e-6)


@pytest.mark.parametrize("dtype", INTEGERS, ids=name)
def test_integer_arithmetic_wraps(dtype):
    info = torch.iinfo(dtype)
    x = torch.tensor([info.min, info.max, info.max - 1, 0, 1, 100], dtype=dtype)
    check(lambda v: (v + v, v * v, v - 100, -v, v.abs(), v.pow(3), v.square(), v * 77 + 5), x)


@pytest.mark.parametrize("dtype", INTEGERS, ids=name)
def test_bits_and_shifts(dtype):
    a, b = values(64, dtype=dtype, low=-9, high=60), values(64, dtype=dtype, low=0, high=2)
    check(lambda x, y: (x & y, x | y, x ^ y, ~x, x << y, x >> y, x << 3, 1 << y, x >> 70, x & 3), a, b)


@pytest.mark.parametrize("mode", ["floor", "trunc"])
@pytest.mark.parametrize("dtype", (*INTEGERS, torch.float32), ids=name)
def test_rounded_division(dtype, mode):
    a, b = values(200, dtype=dtype, low=-50, high=50), values(200, dtype=dtype, low=1, high=9) + 1
    check(lambda x, y: (x.div(y, rounding_mode=mode), x.remainder(y), x.fmod(y), torch.remainder(7, y)), a, b)


def test_division_of_floats_by_zero_and_infinity():
    a = torch.tensor([0.0, 1.0, -1.0, math.inf, math.nan, 5.5, -5.5])
    b = torch.tensor([0.0, -0.0, math.inf, -math.inf, 2.0, -2.0, math.nan])
    check(lambda x, y: (x[:, None] / y, x[:, None].remainder(y), x[:, None].fmod(y), x[:, None] // y), a, b)


def test_not_a_number_wins_in_maximum_and_loses_in_fmax():
    a = torch.tensor([math.nan, 1.0, math.inf, 0.0, math.nan])
    b = torch.tensor([1.0, math.nan, math.nan, -0.0, math.nan])

    def function(x, y):
        return (torch.maximum(x, y), torch.minimum(x, y), torch.fmax(x, y), torch.fmin(x, y), x.clamp(0, 1),
                x.relu(), torch.isnan(x), torch.isfinite(x), torch.isinf(x), x.nan_to_num(2.0), x.sign())  # fmt: skip

    check(function, a, b)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 4, 5, -1, -2, 0.5, -0.5, 1.5, 2.0])
def test_power_with_a_number(exponent):
    check(lambda x: (x**exponent, exponent**x), values(50, low=0.1), tolerance=2e-6)


def test_powers_of_integers():
    base, exponent = torch.arange(-4, 5), torch.tensor([0, 1, 2, 3, 5, 7, 9, 11, 13])
    check(lambda x, y: (x**y, x**2, x**5, 2**y, x.float() ** y), base, exponent)


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
def test_rounding_goes_to_even_and_to_decimals(dtype):
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 2.345, -7.891, 0.0], dtype=dtype)
    check(lambda v: (v.round(), v.floor(), v.ceil(), v.trunc(), v.frac(), v.round(decimals=1)), x, tolerance=1e-2)


CASTS = (*INTEGERS, *FLOATS, torch.bool)


@pytest.mark.parametrize("source", CASTS, ids=name)
def test_conversions(source):
    x = values(40, dtype=source, low=0, high=100)
    check(lambda v: tuple(v.to(target) for target in CASTS), x)


def test_a_conversion_to_half_precision_rounds():
    check(lambda x: (x.half().float() - x, x.bfloat16().float() * 3), values(100), tolerance=0.0)


def test_logic_takes_any_dtype():
    a, b = torch.tensor([0, 1, 2]), torch.tensor([0.0, math.nan, 0.0])

    def function(x, y):
        both = torch.logical_and(x, y), torch.logical_or(x, y), torch.logical_xor(x, y)
        return (*both, torch.logical_not(y), torch.where(y.bool(), x, 7))

    check(function, a, b)


def test_blends():
    a, b, c = values(6, 5), values(5), values(6, 1)

    def function(x, y, z):
        lerps = torch.lerp(x, y, 0.3), torch.lerp(x, y, 0.8), torch.lerp(x, y, z)
        return (*lerps, torch.addcmul(x, y, z, value=0.5), torch.addcdiv(x, y, z + 9, value=-2),
                x.masked_fill(y > 0, 5), x.masked_fill(z > 0, math.inf), x.copysign(y), torch.hypot(x, y))  # fmt: skip

    check(function, a, b, c)


def test_bounds_may_be_tensors_or_missing():
    x, low, high = values(6, 5), values(5), values(6, 1)

    def function(v, a, b):
        return v.clamp(a, b), v.clamp(min=a), v.clamp(max=b), v.clamp(min=0.5), v.clamp(max=1), v.clamp_min(0.0)

    check(function, x, low, high)


FUNCTIONS = [
    torch.exp, torch.exp2, torch.expm1, torch.sin, torch.cos, torch.tanh, torch.sinh, torch.cosh, torch.atan,
    torch.asinh, torch.sigmoid, torch.erf, torch.erfc, torch.neg, torch.abs, torch.sign, torch.special.i0,
    torch.special.i0e, torch.special.i1, torch.special.i1e, torch.special.ndtr, torch.special.log_ndtr,
    torch.special.erfcx, torch.sinc, torch.deg2rad, torch.rad2deg, torch.signbit, torch.square, torch.positive,
    torch.special.bessel_j0, torch.special.spherical_bessel_j0, torch.angle,
]  # fmt: skip
POSITIVE_FUNCTIONS = [
    torch.log, torch.log2, torch.log10, torch.log1p, torch.sqrt, torch.rsqrt, torch.lgamma, torch.digamma,
    torch.reciprocal, torch.special.entr, torch.special.bessel_y0, torch.special.modified_bessel_k1,
]  # fmt: skip
UNIT_FUNCTIONS = [torch.asin, torch.acos, torch.atanh, torch.erfinv, torch.logit, torch.special.ndtri]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_function_of_one_argument(function):
    check(function, values(7, 9), tolerance=3e-6)


@pytest.mark.parametrize("function", POSITIVE_FUNCTIONS, ids=lambda function: function.__name__)
def test_function_of_positive_numbers(function):
    check(function, values(7, 9, low=0.05), tolerance=3e-5)


@pytest.mark.parametrize("function", UNIT_FUNCTIONS, ids=lambda function: function.__name__)
def test_function_of_the_unit_interval(function):
    check(function, values(7, 9, low=0.01, high=0.99), tolerance=3e-6)


def test_integers_become_floats_in_functions():
    check(lambda x: (x.sin(), x.exp(), x.sqrt(), x.sigmoid(), torch.atan2(x, x + 1), x / 3), torch.arange(9))


ACTIVATIONS = [
    F.relu, F.silu, F.gelu, F.mish, F.elu, F.celu, F.selu, F.leaky_relu, F.hardswish, F.hardsigmoid, F.hardtanh,
    F.relu6, F.softplus, F.logsigmoid, F.softsign, F.tanhshrink, F.hardshrink, F.softshrink, torch.sigmoid, torch.tanh,
    lambda x: F.gelu(x, approximate="tanh"), lambda x: F.threshold(x, 0.1, 20.0), lambda x: F.glu(x),
    lambda x: F.elu(x, alpha=0.3), lambda x: F.softplus(x, beta=3, threshold=4), lambda x: F.logsigmoid(x * 30),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(ACTIVATIONS)))
def test_activation_and_its_derivative(index):
    x = values(6, 10)
    check(ACTIVATIONS[index], x, tolerance=2e-6)
    gradients(ACTIVATIONS[index], x.requires_grad_(), tolerance=3e-6)


@pytest.mark.parametrize("dtype", FLOATS[1:], ids=name)
def test_half_precision_is_rounded_once(dtype):
    """A chain in half precision is at least as close to the float64 result as eager's, which rounds each step."""
    x, y = values(500, dtype=dtype), values(500, dtype=dtype)

    def chain(a, b):
        return F.silu(a) * b + a.exp() * 0.1

    from metal_inductor.compiler import backend

    exact = chain(x.double(), y.double())
    ours = torch.compile(chain, backend=backend)(x, y)
    assert ours.dtype == dtype
    assert (ours.double() - exact).abs().max() <= (chain(x, y).double() - exact).abs().max()


def test_prelu_weight_gets_a_gradient():
    gradients(F.prelu, values(4, 3, 5).requires_grad_(), torch.rand(3).requires_grad_(), tolerance=1e-5)


def test_symbolic_sizes_are_numbers_of_the_kernel():
    def function(x):
        return x * x.shape[0] + x.shape[1] / 2, x == x.shape[0], x + x.numel()

    for rows in (3, 6, 11):
        check(function, values(rows, 5), dynamic=True)


def test_empty_and_zero_dimensional_tensors():
    check(lambda x: (x + 1, x.exp()), torch.empty(0, 4))
    check(lambda x: (x + 1, x.exp() * x), torch.tensor(0.5))


def test_frexp_gives_two_results():
    check(lambda x: tuple(torch.frexp(x)), torch.tensor([0.0, 1.0, -3.7, 1e-40, math.inf, 1e30]))


def test_gcd_and_lcm():
    a, b = torch.tensor([12, -18, 0, 7, 0]), torch.tensor([18, 12, 5, 21, 0])
    check(lambda x, y: (torch.gcd(x, y), torch.lcm(x, y)), a, b)
