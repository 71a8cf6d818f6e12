"""The Metal headers that torch ships compile, and give torch's values."""

from __future__ import annotations

import pathlib

import pytest
import torch

from metal_inductor.metal import clang, compile_shader
from metal_inductor.metal.frontend import translate

HEADERS = sorted((pathlib.Path(torch.__file__).parent / "include" / "c10" / "metal").glob("*.h"))
pytestmark = pytest.mark.skipif(not HEADERS, reason="this torch ships no Metal headers")


@pytest.fixture
def on_the_device(metal_device):
    """Tensors are made, and kernels compiled, for each device that runs Metal text."""
    with torch.device(metal_device):
        yield


@pytest.mark.parametrize("header", [header.name for header in HEADERS])
def test_header_compiles(header):
    source = f"#include <c10/metal/{header}>\nkernel void k(device float* x) {{ x[0] = 1; }}\n"
    assert [kernel.name for kernel in translate(source).kernels if kernel.name == "k"] == ["k"]
    assert clang.compile_cpu(translate(source).text)
    assert b".entry" in clang.compile_cuda(translate(source, target="cuda").text)


FUNCTIONS = {
    "erf": torch.erf,
    "erfc": torch.erfc,
    "erfinv": torch.erfinv,
    "log_gamma": torch.lgamma,
    "digamma": torch.digamma,
    "i0": torch.special.i0,
    "i1": torch.special.i1,
    "i0e": torch.special.i0e,
    "sinc": torch.sinc,
    "log1p": torch.log1p,
    "bessel_j0_forward": torch.special.bessel_j0,
    "entr": torch.special.entr,
}


@pytest.mark.usefixtures("on_the_device")
def test_special_functions():
    text = "".join(
        f"kernel void k_{name}(device float* o, device const float* a, uint i [[thread_position_in_grid]]) "
        f"{{ o[i] = c10::metal::{name}(a[i]); }}\n"
        for name in FUNCTIONS
    )
    library = compile_shader(
        f"#include <c10/metal/special_math.h>\nusing namespace metal;\n{text}", device=torch.get_default_device()
    )
    inputs = torch.linspace(0.01, 0.99, 500)
    for name, reference in FUNCTIONS.items():
        result = torch.empty_like(inputs)
        getattr(library, f"k_{name}")(result, inputs, threads=500, group_size=64)
        exact = reference(inputs.cpu().double()).float()
        torch.testing.assert_close(result.cpu(), exact, rtol=3e-5, atol=3e-6, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.usefixtures("on_the_device")
def test_registered_operators():
    source = """
    #include <c10/metal/indexing.h>
    using namespace metal;
    using namespace c10::metal;
    struct triple_functor { template <typename T> inline T operator()(const T x) { return static_cast<T>(x * 3); } };
    REGISTER_UNARY_OP(triple, float, float);
    REGISTER_UNARY_OP(triple, bfloat, bfloat);
    """
    names = {kernel.name for kernel in translate(source).kernels}
    assert {"triple_dense_float_float", "triple_strided_bfloat_bfloat"} <= names
    library = compile_shader(source, device=torch.get_default_device())
    for metal, dtype in (("float", torch.float32), ("bfloat", torch.bfloat16)):
        values = torch.randn(100).to(dtype)
        result = torch.empty_like(values)
        dense = getattr(library, f"triple_dense_{metal}_{metal}")
        dense(result, values, torch.tensor(100, dtype=torch.int32), threads=100, group_size=32)
        assert torch.equal(result, values * 3)


@pytest.mark.usefixtures("on_the_device")
def test_reductions_across_a_threadgroup():
    source = """
    #include <c10/metal/reduction_utils.h>
    using namespace c10::metal;
    kernel void k(device float* o, device const float* a, device long* l, uint t [[thread_index_in_threadgroup]],
                  uint n [[threads_per_threadgroup]]) {
      threadgroup float sums[32];
      threadgroup float extrema[32];
      o[t] = threadgroup_sum(sums, a[t], t, n) + threadgroup_max(extrema, a[t], t, n);
      l[t] = simd_sum(l[t]);
    }
    """
    library = compile_shader(source, device=torch.get_default_device())
    values, wide = torch.arange(96.0), (torch.arange(96) << 33)
    result, sums = torch.empty(96), wide.clone()
    library.k(result, values, sums, threads=96, group_size=96)
    assert torch.equal(result, torch.full((96,), 96 * 95 / 2 + 95))
    assert torch.equal(sums.view(3, 32), wide.view(3, 32).sum(1, keepdim=True).expand(3, 32))
