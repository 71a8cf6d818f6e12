"""metal::fast on each device: within the errors that Metal allows its fast math."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import metal_inductor

# name: exact function, range of arguments, allowed ulp at x, allowed absolute error
FUNCTIONS: dict[str, tuple[Callable, tuple[float, float], Callable, float]] = {
    "exp": (np.exp, (-80, 80), lambda x: 3 + np.floor(abs(2 * x)), 0),
    "exp2": (np.exp2, (-120, 120), lambda x: 3 + np.floor(abs(2 * x)), 0),
    "exp10": (lambda x: 10.0**x, (-36, 36), lambda x: 3 + np.floor(abs(2 * x)), 0),
    "log": (np.log, (1e-6, 100), lambda x: 3, 2.0**-21),
    "log2": (np.log2, (1e-6, 100), lambda x: 3, 2.0**-21),
    "log10": (np.log10, (1e-6, 100), lambda x: 3, 2.0**-21),
    "sin": (np.sin, (-np.pi, np.pi), lambda x: 0, 2.0**-13),
    "cos": (np.cos, (-np.pi, np.pi), lambda x: 0, 2.0**-13),
    "sqrt": (np.sqrt, (0, 1e6), lambda x: 3, 0),
    "rsqrt": (lambda x: x**-0.5, (1e-6, 1e6), lambda x: 2, 0),
    "divide": (lambda x: x / np.float64(np.float32(3.7)), (-1e6, 1e6), lambda x: 2.5, 0),
}
EXTREMES = {
    "exp": [np.inf, -np.inf, 0.0, np.nan], "exp2": [np.inf, -np.inf, 0.0, np.nan],
    "exp10": [np.inf, -np.inf, 0.0, np.nan], "log": [np.inf, 0.0, 1.0, np.nan], "log2": [np.inf, 0.0, 1.0, np.nan],
    "log10": [np.inf, 0.0, 1.0, np.nan], "sqrt": [np.inf, 0.0, 1.0, np.nan], "rsqrt": [np.inf, 0.0, 1.0, np.nan],
}  # fmt: skip


def call(name: str, argument: str) -> str:
    """divide has a second operand, which is no power of two."""
    return f"fast::divide({argument}, decltype({argument})(3.7f))" if name == "divide" else f"fast::{name}({argument})"


@pytest.fixture(scope="module")
def library(metal_device):
    kernels = "".join(
        f"kernel void {name}{n}(device T{n}* y, device const T{n}* x, uint i [[thread_position_in_grid]]) {{\n"
        f"  T{n} a = x[i];\n  y[i] = {call(name, 'a')};\n}}\n"
        for name in FUNCTIONS
        for n in (1, 4)
    )
    head = "#include <metal_stdlib>\nusing namespace metal;\ntypedef float T1;\ntypedef float4 T4;\n"
    return metal_inductor.compile_shader(head + kernels, device=metal_device)


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_are_those_that_metal_allows(library, metal_device, name, width):
    function, (low, high), ulp, absolute = FUNCTIONS[name]
    x = np.random.default_rng(1).uniform(low, high, 4096).astype(np.float32)
    y = torch.zeros(4096, device=metal_device)
    getattr(library, f"{name}{width}")(y, torch.from_numpy(x).to(metal_device), threads=4096 // width)
    exact = function(x.astype(np.float64))
    allowed = np.maximum(ulp(x) * np.spacing(abs(exact).astype(np.float32)).astype(np.float64), absolute)
    assert (abs(y.cpu().numpy() - exact) <= allowed).all()


@pytest.mark.parametrize("name", EXTREMES)
def test_infinities_zero_and_nan(library, metal_device, name):
    x = torch.tensor(EXTREMES[name], dtype=torch.float32)
    y = torch.zeros(4, device=metal_device)
    getattr(library, f"{name}1")(y, x.to(metal_device))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(y.cpu().numpy(), FUNCTIONS[name][0](x.double().numpy()).astype(np.float32))
