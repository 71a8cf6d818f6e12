"""What `benchmarks.kernels` measures: functions as a user writes them, their inputs, torch's ways, and the goals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import layer_shapes

Inputs = tuple[Tensor, ...]
# Outputs x inputs of the matrix-vector product that gives the read ceiling: 1 GB of bfloat16, a quarter off CUDA.
CEILING_SHAPES = {"cuda": (248320, 2048), "mps": (65536, 2048), "cpu": (65536, 2048)}
LARGE_OUTPUTS = 65536
EXACT_ROWS = 1 << 14  # rows of a weight that are turned to float64 at a time

# The least that counts as reached, as torch's time over ours.
AS_FAST_AS_CUBLAS = 0.98
AS_FAST_AS_FUSED_NORM = 0.9


@dataclass(frozen=True)
class Row:
    """One function and one shape of its inputs.

    `torch_ways` are further forms of the same function that torch may be faster in; `moved_bytes` must be read or
    written at least; `least_ratio` is the goal for torch's time over ours and `least_share` that for the share of the
    read ceiling, None where there is no goal.
    """

    family: str
    name: str
    function: Callable[..., Tensor]
    inputs: Callable[[str], Inputs]
    moved_bytes: int
    least_ratio: float | None = None
    least_share: float | None = None
    flops: int = 0
    function_name: str = "torch"
    torch_ways: dict[str, Callable[..., Tensor]] = field(default_factory=dict)
    exact: Callable[..., Tensor] | None = None

    def exactly(self, *inputs: Tensor) -> Tensor:
        """The result in float64."""
        if self.exact is not None:
            return self.exact(*inputs)
        return self.function(*map(in_float64, inputs)).double()


def in_float64(value: Tensor) -> Tensor:
    """`value` in float64 on its device, or on the CPU where its device has no such numbers."""
    return (value.cpu() if value.device.type == "mps" else value).double()


def _normal(device: str, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device=device, dtype=dtype)


def linear(outputs: int, inputs: int) -> Row:
    """One row times a weight, with a bias, in bfloat16."""
    return Row(
        family="linear",
        name=f"linear {outputs} x {inputs}",
        function=F.linear,
        function_name="F.linear",
        inputs=lambda device: (
            _normal(device, 1, inputs),
            _normal(device, outputs, inputs),
            _normal(device, outputs),
        ),
        moved_bytes=2 * (outputs * inputs + inputs + 2 * outputs),
        least_ratio=AS_FAST_AS_CUBLAS,
        least_share=0.95 if outputs >= LARGE_OUTPUTS else None,
        exact=_exact_linear,
    )


def _exact_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    row = in_float64(x)
    parts = [F.linear(row, in_float64(part)) for part in weight.split(EXACT_ROWS)]
    return torch.cat(parts, dim=-1) + in_float64(bias)


def ceiling(outputs: int, inputs: int) -> Row:
    """The product without a bias whose reading of its weight is the read ceiling."""
    return Row(
        family="ceiling",
        name=f"read ceiling, {outputs} x {inputs}",
        function=F.linear,
        inputs=lambda device: (_normal(device, 1, inputs), _normal(device, outputs, inputs)),
        moved_bytes=2 * (outputs * inputs + inputs + outputs),
    )


def softmax(length: int) -> Row:
    return Row(
        family="softmax",
        name=f"softmax f32 1 x {length}",
        function=lambda x: torch.softmax(x, -1),
        inputs=lambda device: (_normal(device, 1, length, dtype=torch.float32),),
        moved_bytes=8 * length,
        least_ratio=2,
    )


def argmax(length: int) -> Row:
    return Row(
        family="argmax",
        name=f"argmax f32 1 x {length}",
        function=lambda x: torch.argmax(x, -1),
        inputs=lambda device: (_normal(device, 1, length, dtype=torch.float32),),
        moved_bytes=4 * length,
        least_ratio=1,
    )


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def _causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def _folded_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The query heads that share keys as rows of one head: the same numbers for a single query without a mask."""
    rows = q.reshape(q.shape[0], k.shape[1], -1, q.shape[3])
    return F.scaled_dot_product_attention(rows, k, v).reshape(q.shape)


def _attention_inputs(device: str, heads: tuple[int, int], queries: int, keys: int, dim: int) -> Inputs:
    shapes = ((heads[0], queries), (heads[1], keys), (heads[1], keys))
    return tuple(_normal(device, 1, number, length, dim) for number, length in shapes)


def decode_attention(heads: int, key_heads: int, dim: int, length: int) -> Row:
    """One query of each head against a cache, in bfloat16."""
    return Row(
        family="decode attention",
        name=f"decode attention {heads}/{key_heads} D {dim} L {length}",
        function=_attention,
        function_name="SDPA enable_gqa",
        torch_ways={"SDPA heads folded": _folded_attention},
        inputs=lambda device: _attention_inputs(device, (heads, key_heads), 1, length, dim),
        moved_bytes=4 * dim * (key_heads * length + heads),
        least_ratio=1,
    )


def prefill_attention(heads: int, key_heads: int, dim: int, length: int, causal: bool) -> Row:
    """As many queries as keys, in bfloat16; without a goal, as no decode step holds it."""
    return Row(
        family="prefill attention",
        name=f"prefill attention {heads}/{key_heads} D {dim} L {length}{' causal' if causal else ''}",
        function=_causal_attention if causal else _attention,
        function_name="SDPA",
        inputs=lambda device: _attention_inputs(device, (heads, key_heads), length, length, dim),
        moved_bytes=4 * dim * length * (key_heads + heads),
        flops=4 * heads * length * length * dim // (2 if causal else 1),
    )


def rms_norm(rows: int, columns: int) -> Row:
    return Row(
        family="norm",
        name=f"rms_norm {rows} x {columns}",
        function=lambda x, weight: F.rms_norm(x, (columns,), weight, 1e-6),
        function_name="F.rms_norm",
        inputs=lambda device: (_normal(device, rows, columns), _normal(device, columns)),
        moved_bytes=2 * (2 * rows * columns + columns),
        least_ratio=AS_FAST_AS_FUSED_NORM,
    )


def layer_norm(rows: int, columns: int) -> Row:
    return Row(
        family="norm",
        name=f"layer_norm {rows} x {columns}",
        function=lambda x, weight, bias: F.layer_norm(x, (columns,), weight, bias, 1e-6),
        function_name="F.layer_norm",
        inputs=lambda device: (_normal(device, rows, columns), *(_normal(device, columns) for _ in range(2))),
        moved_bytes=4 * (rows * columns + columns),
        least_ratio=AS_FAST_AS_FUSED_NORM,
    )


def group_norm(groups: int, batch: int, channels: int, *plane: int) -> Row:
    numel = batch * channels * plane[0] * plane[1]
    return Row(
        family="norm",
        name=f"group_norm {groups} of {batch} x {channels} x {plane[0]} x {plane[1]}",
        function=lambda x, weight, bias: F.group_norm(x, groups, weight, bias, 1e-6),
        function_name="F.group_norm",
        inputs=lambda device: (
            _normal(device, batch, channels, *plane),
            *(_normal(device, channels) for _ in range(2)),
        ),
        moved_bytes=4 * (numel + channels),
        least_ratio=AS_FAST_AS_FUSED_NORM,
    )


def _families() -> dict[str, list[Row]]:
    return {
        "linear": [linear(*shape) for shape in layer_shapes.shapes()],
        "softmax": [softmax(length) for length in (128256, 151936, 248320)],
        "argmax": [argmax(151936)],
        "decode attention": [
            decode_attention(32, 8, 80, 4096),
            decode_attention(32, 8, 128, 4096),
            decode_attention(32, 8, 64, 2048),
            decode_attention(16, 2, 256, 2048),
            decode_attention(32, 1, 128, 32768),
        ],
        "norm": [
            rms_norm(4096, 2048),
            layer_norm(4096, 2048),
            group_norm(32, 8, 320, 64, 64),
            rms_norm(1, 2048),
        ],
        "prefill attention": [
            prefill_attention(32, 8, 128, 2048, causal=True),
            prefill_attention(16, 16, 40, 4096, causal=False),
        ],
    }


FAMILIES: dict[str, list[Row]] = _families()


def by_name(names: list[str]) -> list[Row]:
    """Rows of those names, in their order; KeyError for an unknown one."""
    known: dict[str, Any] = {row.name: row for rows in FAMILIES.values() for row in rows}
    return [known[name] for name in names]
