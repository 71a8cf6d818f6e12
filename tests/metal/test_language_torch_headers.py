"""The Metal headers that torch ships compile, and give torch's values."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import torch

from metal_inductor.metal import clang, compile_shader
from metal_inductor.metal.frontend import translate

FOLDER = pathlib.Path(torch.__file__).parent / "include" / "c10" / "metal"
HEADERS = sorted(FOLDER.glob("*.h"))
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


def philox(seed: int, index: np.ndarray) -> np.ndarray:
    """Four 32-bit words for each index: nine rounds of Philox 4x32. Early versions of torch's header take the high word
    of a product for the low one."""
    mask = np.uint64(0xFFFFFFFF)
    mixes_high = "rc1.x ^ ctr.y" in (FOLDER / "random.h").read_text()

    def halves(product: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        words = product >> np.uint64(32), product & mask
        return words if mixes_high else words[::-1]

    high, low = np.uint64(seed >> 32), np.uint64(seed & 0xFFFFFFFF)
    x, y = np.zeros_like(index), np.zeros_like(index)
    z, w = index >> np.uint64(32), index & mask
    for _ in range(9):
        first, second = halves(np.uint64(0xD2511F53) * x), halves(np.uint64(0xCD9E8D57) * z)
        x, y, z, w = second[0] ^ y ^ high, second[1], first[0] ^ w ^ low, first[1]
        high, low = (high + np.uint64(0x9E3779B9)) & mask, (low + np.uint64(0xBB67AE85)) & mask
    return np.stack([x, y, z, w], -1)


def test_random_numbers_are_philox():
    source = """
    #include <c10/metal/random.h>
    kernel void k(device float* uniform, device float* normal, device long* integers, constant long* seed,
                  constant long& first, uint i [[thread_position_in_grid]]) {
      uniform[i] = c10::metal::rand(seed[0], first + i);
      normal[i] = c10::metal::randn(seed[0], first + i);
      integers[i] = c10::metal::randint64(seed[0], first + i, -7, 1000);
    }
    """
    count, seed, first = 5000, 0x123456789ABCDEF, 2**33 - 100
    uniform, normal, integers = torch.empty(count), torch.empty(count), torch.empty(count, dtype=torch.int64)
    compile_shader(source, device="cpu").k(uniform, normal, integers, torch.tensor([seed]), first, threads=count)
    words = philox(seed, np.arange(first, first + count, dtype=np.uint64)) & np.uint64(0x7FFFFFFF)
    scaled = words.astype(np.float32) * np.float32(4.6566127342e-10)
    exact = scaled.astype(np.float64)
    np.testing.assert_array_equal(uniform.numpy(), scaled[:, 0])
    np.testing.assert_array_equal(integers.numpy(), -7 + (scaled[:, 0] * np.float32(1007)).astype(np.int64))
    reference = np.sqrt(-2 * np.log(1 - exact[:, 0])) * np.cos(2 * np.pi * (1 - exact[:, 1]))
    np.testing.assert_allclose(normal.numpy(), reference, rtol=1e-4, atol=1e-4)


def gather_library():
    return compile_shader(
        """
        #include <c10/metal/error.h>
        kernel void gather(device float* out, constant float* table, constant long* index, constant long& rows,
                           device c10::metal::ErrorMessages* errors, uint i [[thread_position_in_grid]],
                           uint t [[thread_index_in_threadgroup]]) {
          auto row = index[i];
          if (row < 0 || row >= rows) {
            TORCH_REPORT_ERROR(errors, "Index ", row, " out of range [0, ", rows, ")");
            return;
          }
          threadgroup float seen[64];
          seen[t] = table[row];
          metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
          out[i] = seen[t];
        }
        """,
        device="cpu",
    )


def test_an_error_that_a_kernel_reports_is_raised():
    library, out, table, index = gather_library(), torch.empty(256), torch.randn(10), torch.randint(0, 10, (256,))
    library.gather(out, table, index, 10, threads=256, group_size=64, error_buf_idx=4)
    assert torch.equal(out, table[index])
    index[37] = -12
    with pytest.raises(
        torch.AcceleratorError, match=r"^Index -12 out of range \[0, 10\)\nreported by gather at"
    ) as raised:
        library.gather(out, table, index, 10, threads=256, group_size=64, error_buf_idx=4)
    assert raised.value.error_code == 1
    with pytest.raises(torch.AcceleratorError, match=r"(?s)^Index 11 out of range.* and 255 more$") as raised:
        library.gather(out, table, torch.full((256,), 11), 10, threads=256, group_size=64, error_buf_idx=4)
    index[37] = 3
    library.gather(out, table, index, 10, threads=256, group_size=64, error_buf_idx=4)
    assert torch.equal(out, table[index])


@pytest.mark.parametrize("index, error", [(-1, ValueError), (6, ValueError), (True, TypeError), ("4", TypeError)])
def test_an_error_buffer_has_a_place_among_the_buffers(index, error):
    arguments = (torch.empty(8), torch.randn(10), torch.zeros(8, dtype=torch.int64), 10)
    with pytest.raises(error, match="error_buf_idx"):
        gather_library().gather(*arguments, error_buf_idx=index)


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
