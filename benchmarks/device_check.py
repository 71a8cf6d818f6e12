"""Compare compiled functions and small language models with eager on one device; the quickest look at a new machine.

    python -m benchmarks.device_check [--device cpu|cuda|mps] [--json OUT]

Each row is a function, the largest difference from a float64 run on the CPU, eager's own, and the ATen calls it took.
The exit status is 1 when a row is further from float64 than 2 times eager plus one rounding of the largest result.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks import machine
from metal_inductor.compiler import backend
from metal_inductor.report import collect

Row = tuple[str, Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]


def functions() -> Iterator[Row]:
    """Names, functions of one result, and inputs on the CPU."""
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    yield "pointwise", lambda x: x.sin() * 2 + x[:, ::3].exp().sum(), (randn(33, 1000),)
    for length in (1, 5, 33, 1025, 70000):
        yield f"sum of {length}", lambda x: x.sum(-1), (randn(7, length),)
        yield f"softmax of {length}", lambda x: x.softmax(-1), (randn(7, length),)
        yield f"argmax of {length}", lambda x: x.argmax(-1).float(), (randn(7, length),)
    yield "variance by column", lambda x: x.var(0), (randn(300, 70) + 5,)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for m, n, k in ((1, 576, 576), (3, 77, 129), (8, 1000, 64)):
            inputs = (randn(m, k, dtype=dtype), randn(n, k, dtype=dtype), randn(n, dtype=dtype))
            yield f"linear {m} x {n} x {k} {dtype}", lambda x, w, b: F.gelu(F.linear(x, w, b)), inputs
        for dim, keys in ((64, 100), (80, 4096), (33, 1)):
            q, k, v = (randn(1, heads, rows, dim, dtype=dtype) for heads, rows in ((8, 1), (2, keys), (2, keys)))
            yield f"attention {dim} x {keys} {dtype}", _attention, (q, k, v)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def check_function(function: Callable[..., torch.Tensor], inputs: tuple, device: str) -> dict[str, Any]:
    """Differences from float64 of the compiled and of the eager run."""
    torch._dynamo.reset()
    exact = function(*(value.double() for value in inputs)).double()
    there = [value.to(device) for value in inputs]
    eager = function(*there)
    with collect() as reports:
        ours = torch.compile(function, backend=backend, dynamic=False)(*there)
    errors = [(value.cpu().double() - exact).abs().max().item() for value in (ours, eager)]
    rounding = torch.finfo(ours.dtype).eps * exact.abs().max().item()
    calls = sum((report.extern_calls for report in reports), start=type(reports[0].extern_calls)())
    return {
        "error": errors[0],
        "eager_error": errors[1],
        "ok": errors[0] <= 2 * errors[1] + rounding,
        "aten_calls": calls,
    }


MODELS = {
    "llama": {},
    "qwen3": {"head_dim": 32},
    "mixtral": {"num_local_experts": 4},
}


def check_model(model_type: str, device: str, steps: int = 20) -> dict[str, Any]:
    """The largest logit difference between compiled and eager over a prefill and `steps` decode steps, in float32."""
    from transformers import AutoConfig, AutoModelForCausalLM, StaticCache

    sizes = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = AutoConfig.for_model(model_type, **sizes, **heads, **MODELS[model_type])
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval().to(device)
    tokens = torch.randint(0, 512, (1, 8 + steps)).to(device)

    def logits(forward: Callable[..., Any]) -> torch.Tensor:
        cache, rows = StaticCache(config=config, max_cache_len=64), []
        with torch.no_grad():
            for begin, end in [(0, 8)] + [(k, k + 1) for k in range(8, 8 + steps)]:
                position = torch.arange(begin, end, device=device)[None]
                output = forward(tokens[:, begin:end], past_key_values=cache, use_cache=True, position_ids=position)
                rows.append(output.logits[0, -1])
        return torch.stack(rows)

    expected = logits(model.forward)
    with collect() as reports:
        actual = logits(torch.compile(model.forward, backend=backend, fullgraph=True))
    difference = (actual - expected).abs().max().item()
    decode = reports[-1]
    calls = dict(decode.extern_calls)
    return {"error": difference, "ok": difference < 1e-4, "dispatches": decode.dispatches, "aten_calls": calls}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device_check", description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda", "mps"), default="cpu")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.backends.cuda.matmul.allow_tf32 = False
    results = {name: check_function(function, inputs, options.device) for name, function, inputs in functions()}
    results.update({name: check_model(name, options.device) for name in MODELS})
    for name, row in results.items():
        print(
            f"{'ok' if row['ok'] else 'WRONG':6}{name:40}{row['error']:.3g}", dict(row["aten_calls"]) or "", flush=True
        )
    if options.json:
        record = {"device": options.device, "machine": machine.describe(), "results": results}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(row["ok"] for row in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
