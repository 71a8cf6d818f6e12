"""Kernels that torch's own Metal backend generates compile, run on the CPU, and give eager's numbers."""

from __future__ import annotations

import copy
from math import inf, nan
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.exc import BackendCompilerFailed

from benchmarks import models
from tests.metal import inductor_mps

LAYERS = 2


def changed_floats(change: Any, value: Any) -> Any:
    """A cache's attribute with `change` made to its tensors, which may be in a dictionary."""
    if isinstance(value, dict):
        return {key: changed_floats(change, item) for key, item in value.items()}
    return change(value) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def layers_of(step: models.DecodeStep) -> list[Any]:
    return next(value.layers for value in step.arguments.values() if hasattr(value, "layers"))


def in_double(step: models.DecodeStep) -> models.DecodeStep:
    """The same step, weights and cache in float64."""
    model, arguments = copy.deepcopy((step.forward.__self__, step.arguments))
    exact = models.DecodeStep(model.double().forward, step.token, arguments)
    for layer in layers_of(exact):
        for name, value in vars(layer).items():
            setattr(layer, name, changed_floats(torch.Tensor.double, value))
        layer.dtype = torch.float64
    model.config._experts_implementation = "eager"  # grouped products know no float64
    return exact


def results(forward: Any, step: models.DecodeStep) -> dict[str, torch.Tensor]:
    """Logits and the cache after one step."""
    with torch.no_grad():
        logits = forward(step.token, **step.arguments).logits
    found = {"logits": logits}
    for index, layer in enumerate(layers_of(step)):
        for name, value in vars(layer).items():
            for key, tensor in (value if isinstance(value, dict) else {"": value}).items():
                if isinstance(tensor, torch.Tensor):
                    found[f"layer {index} {name} {key}"] = tensor
    return found


def check_decode_step(name: str, dtype: torch.dtype) -> inductor_mps.Generated:
    """Nothing of a decode step is further from float64 than eager's own result, but for a rounding or two."""
    step = models.decode_step(name, LAYERS, dtype=dtype)
    exact_step, eager_step = in_double(step), copy.deepcopy(step)
    forward, generated = inductor_mps.compiled(step.forward)
    ours = results(forward, step)
    eager = results(eager_step.forward.__self__.forward, eager_step)
    exact = results(exact_step.forward, exact_step)
    for key, value in ours.items():
        assert value.dtype == eager[key].dtype
        if not value.is_floating_point():
            assert torch.equal(value, eager[key]), key
            continue
        error, allowed = (value - exact[key]).abs().max(), (eager[key] - exact[key]).abs().max()
        rounding = torch.finfo(dtype).eps * exact[key].abs().max()
        assert error <= 1.5 * allowed + 0.5 * rounding, f"{key}: error {error}, eager's {allowed}"
    return generated


FAST = {("qwen3_moe", torch.bfloat16), ("lfm2_moe", torch.float32)}
STEPS = [
    pytest.param(name, dtype, id=f"{name}-{dtype}", marks=() if (name, dtype) in FAST else pytest.mark.slow)
    for name in models.CONFIGS
    for dtype in (torch.bfloat16, torch.float32)
]


@pytest.mark.parametrize("name, dtype", STEPS)
def test_a_decode_step(name, dtype):
    generated = check_decode_step(name, dtype)
    assert len(generated.programs) == 1 and len(generated.compiled) >= 14
    assert set(generated.compiled) == set(generated.launches)


def check(function: Any, *inputs: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-6) -> inductor_mps.Generated:
    """Results have eager's dtypes and float64's values; integers and booleans eager's values."""
    run, generated = inductor_mps.compiled(function)
    ours, eager = run(*inputs), function(*inputs)
    exact = function(*(value.double() if value.is_floating_point() else value for value in inputs))
    for key, value in ours.items():
        assert value.dtype == eager[key].dtype, key
        reference = exact[key].to(value.dtype) if value.is_floating_point() else eager[key]
        torch.testing.assert_close(
            value, reference, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m, k=key: f"{k}: {m}"
        )
    assert generated.compiled and set(generated.compiled) == set(generated.launches)
    return generated


def reductions(long, short, cube):
    return {
        "softmax": long.softmax(-1),
        "softmax of few": short.softmax(-1),
        "log_softmax of columns": long.log_softmax(0),
        "layer_norm": F.layer_norm(long, (long.shape[1],), long[0], long[1]),
        "rms_norm": F.rms_norm(cube, (cube.shape[2],)),
        "var_mean": torch.cat(torch.var_mean(long, 1)),
        "std of all": cube.std(),
        "sum": long.sum(),
        "sum of columns": long.sum(0),
        "sum of the middle": cube.sum(1),
        "prod": (1 + short / 64).prod(-1),
        "logsumexp": long.logsumexp(-1),
        "amax": cube.amax((0, 2)),
        "argmax": long.argmax(-1),
        "argmin": cube.argmin(1),
        "max": torch.max(long, 1).indices,
        "any": (short > 2.5).any(-1),
        "all": (long > -9).all(),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_reductions(dtype):
    inputs = [torch.randn(shape).to(dtype) for shape in ((7, 1500), (33, 5), (3, 6, 130))]
    loose = {"rtol": 2**-7, "atol": 0.25} if dtype == torch.bfloat16 else {"atol": 1e-5}
    if dtype == torch.bfloat16 and torch.__version__ < "2.12":  # it assigns floats to bfloats, which is not Metal
        with pytest.raises(BackendCompilerFailed, match="SyntaxError"):
            check(reductions, *inputs, **loose)
    else:
        check(reductions, *inputs, **loose)


def pointwise(x, y):
    return {
        "gelu": F.gelu(x),
        "gelu by tanh": F.gelu(x, approximate="tanh"),
        "silu": F.silu(x),
        "softplus": F.softplus(x),
        "mish": F.mish(x),
        "tanh": x.tanh(),
        "expm1": x.expm1(),
        "log1p": x.abs().log1p(),
        "erf": x.erf(),
        "pow": x.abs() ** y,
        "square": x**2,
        "atan2": torch.atan2(x, y),
        "rsqrt": x.abs().rsqrt(),
        "fmod": torch.fmod(x, y),
        "remainder": torch.remainder(x, y),
        "floor_divide": torch.floor_divide(x, y),
        "round": x.round(),
        "sign": x.sign(),
        "where": torch.where(x > y, x, y * 2),
        "clamp": x.clamp(-0.5, 0.75),
        "maximum": torch.maximum(x, y),
        "nan_to_num": x.nan_to_num(1.5, 2.5, -2.5),
        "isfinite": x.isfinite(),
        "lerp": torch.lerp(x, y, 0.3),
        "broadcast": x[:1] + y[:, :1],
        "to int": x.nan_to_num(0, 9, -9).to(torch.int32),
        "to half": (x * 0.5).half(),
    }


def test_pointwise_functions():
    x, y = torch.randn(2, 37, 11).mul(3)
    check(pointwise, x, y, rtol=2e-5)


def test_pointwise_functions_of_special_values():
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, inf, -inf, nan, 1e-40, 3e38, -2.5])
    x, y = torch.meshgrid(special, special, indexing="ij")
    wanted = ("tanh", "pow", "where", "maximum", "nan_to_num", "isfinite", "sign", "round", "clamp", "silu")
    check(lambda x, y: {name: pointwise(x, y)[name] for name in wanted}, x, y, rtol=2e-5)


def special_functions(x, y):
    names = ("digamma", "lgamma", "erfinv", "i0")
    bessel = (
        "i0e",
        "i1",
        "i1e",
        "bessel_j0",
        "bessel_j1",
        "bessel_y0",
        "bessel_y1",
        "modified_bessel_k0",
        "entr",
        "erfc",
    )
    return {
        **{name: getattr(torch, name)(x) for name in names},
        **{name: getattr(torch.special, name)(x) for name in bessel},
        "polygamma": torch.polygamma(1, x),
        "zeta": torch.special.zeta(1 + y, x),
        "igamma": torch.special.gammainc(y, x),
        "chebyshev": torch.special.chebyshev_polynomial_t(x, 3),
    }


def test_special_functions():
    x, y = torch.rand(500) * 0.98 + 0.01, torch.rand(500) * 3 + 0.5
    check(special_functions, x, y, rtol=1e-4, atol=1e-5)


def integers(a, b, small, flags):
    return {
        "floor_divide": a // b,
        "remainder": a % b,
        "truncated": torch.div(a, b, rounding_mode="trunc"),
        "fmod": torch.fmod(a, b),
        "true division": a / b,
        "bits": (a & b) | (a ^ 7) & ~b,
        "shifts": (a << 3) + (a >> 2),
        "wraps": small * 5 + 1,
        "promoted": small + a,
        "sum of bytes": small.sum(),
        "sum": a.sum(),
        "cumulative": a.cumsum(0),
        "argmax": a.argmax(),
        "compared": (a > b) & flags,
        "logical": (flags | (a > 0)) & ~(flags & (b > 0)),
        "flags as numbers": flags * a + flags.sum(),
        "absolute": torch.where(a < 0, -a.abs(), a.abs()),
        "clamp": a.clamp(-20, 30),
    }


@pytest.mark.parametrize("dtype, small", [(torch.int64, torch.uint8), (torch.int32, torch.int8)], ids=str)
def test_integers_and_booleans(dtype, small):
    count = 301  # no whole simdgroups: torch's sums of 64-bit integers read zero from the lanes that are missing
    a = torch.randint(-(2**20), 2**20, (count,), dtype=dtype)
    b = torch.where(torch.rand(count) < 0.5, -1, 1).to(dtype) * torch.randint(1, 90, (count,), dtype=dtype)
    check(integers, a, b, torch.randint(0, 127, (count,), dtype=small), torch.rand(count) < 0.5)


def indexing(table, index, x, mask):
    return {
        "embedding": F.embedding(index, table),
        "rows": table[index.flatten()],
        "gather": table.gather(0, index),
        "take along": torch.take_along_dim(table, table.argsort(1), 1),
        "added up": torch.zeros_like(table).index_add(0, index.flatten(), x[: index.numel(), : table.shape[1]]),
        "put": table.index_put((index[0],), x[: index.shape[1], : table.shape[1]].clone()),
        "cat": torch.cat([x, x[:, :3] * 2, -x[:, 1:]], 1),
        "pad": F.pad(x, (1, 2, 3, 0), value=0.5),
        "reflected": F.pad(x[None], (2, 1), mode="reflect"),
        "roll": x.roll((3, -2), (0, 1)),
        "flip": x.flip(0, 1),
        "turned": x.t().contiguous() + 1,
        "strided": x[1::3, ::2] * 2,
        "triangle": x.tril(2) + x.triu(-1),
        "masked": x.masked_fill(mask, -1.0),
        "one hot": F.one_hot(index, 13),
        "steps": torch.arange(0, 40, 3, dtype=torch.float32) * 0.5,
    }


def test_indexing():
    index = torch.randint(0, 13, (5, 6))
    check(indexing, torch.randn(13, 6), index, torch.randn(40, 9), torch.rand(40, 9) < 0.3)


@pytest.mark.parametrize("bad", [13, -14, 2**40])
def test_an_index_out_of_range_raises(bad):
    table, index = torch.randn(13, 40), torch.randint(0, 13, (50,))
    run, _ = inductor_mps.compiled(lambda table, index: table[index].softmax(-1))
    torch.testing.assert_close(run(table, index), table[index].softmax(-1))
    index[17] = bad
    with pytest.raises(torch.AcceleratorError, match=r"^Index -?\d+ out of range \[0, 13\)"):
        run(table, index)
