"""Kernels and ATen calls that one layer adds to a decode step, beside torch's own Metal backend.

    python -m benchmarks.dispatches [--json] [--models llama,qwen3] [--out FILE]

Both sides make the kernels of an Apple GPU. Counted as the difference of two depths, so that embedding, head and mask
drop out; all counts come from this run. The figures of lfm2_moe are the mean of its two kinds of layer. The last line
of `--json` is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import machine, models, peer
from metal_inductor import report

OPTIONS = {"policy_device": "mps"}  # the kernels of an Apple GPU, as on the other side
DEPTHS = (2, 4)  # even, so that each holds as many of both kinds of layer where a model alternates


@dataclass(frozen=True)
class Counts:
    """What one decode step runs: kernels by the ops fused into them, ATen calls by name and by reason."""

    kernels: Counter[str]
    aten_calls: Counter[str]
    reasons: dict[str, str]


def ours(name: str, depth: int) -> Counts:
    """Compile and run one decode step of the model with `depth` layers."""
    step = models.decode_step(name, depth)
    torch._dynamo.reset()
    with report.collect() as graphs, torch.no_grad():
        compiled = torch.compile(step.forward, backend="metal_inductor", fullgraph=True, options=OPTIONS)
        compiled(step.token, **step.arguments)
    kernels = Counter(f"{kernel.kind}: {' '.join(kernel.ops)}" for graph in graphs for kernel in graph.kernels)
    calls = [extern for graph in graphs for extern in graph.externs]
    return Counts(kernels, Counter(call.name for call in calls), {call.name: call.reason for call in calls})


def theirs(name: str, depth: int) -> int:
    """Kernels plus ATen calls of torch's Metal backend for the same step."""
    step = models.decode_step(name, depth)
    kernels, calls = peer.count(step.forward, step.token, **step.arguments)
    return kernels + calls.total()


def per_layer(counts: tuple[Counter[str], Counter[str]]) -> dict[str, float]:
    """Counts of the deeper model minus those of the shallower, for each layer between them; zeros left out."""
    shallow, deep = counts
    layers = DEPTHS[1] - DEPTHS[0]
    differences = {name: (deep[name] - shallow[name]) / layers for name in deep | shallow}
    return {name: _plain(value) for name, value in sorted(differences.items()) if value}


def _plain(value: float) -> float | int:
    return int(value) if value == int(value) else round(value, 3)


def measure(name: str) -> dict[str, Any]:
    shallow, deep = (ours(name, depth) for depth in DEPTHS)
    kernels = per_layer((shallow.kernels, deep.kernels))
    calls = per_layer((shallow.aten_calls, deep.aten_calls))
    peer_shallow, peer_deep = (theirs(name, depth) for depth in DEPTHS)
    return {
        "dispatches_per_layer": _plain(sum(kernels.values())),
        "aten_calls_per_layer": _plain(sum(calls.values())),
        "aten_calls": calls,
        "aten_reasons": {call: deep.reasons[call] for call in calls if call in deep.reasons},
        "kernels": kernels,
        "peer_per_layer": _plain((peer_deep - peer_shallow) / (DEPTHS[1] - DEPTHS[0])),
    }


def show(name: str, result: dict[str, Any]) -> None:
    total = result["dispatches_per_layer"] + result["aten_calls_per_layer"]
    print(
        f"{name}: {_plain(total)} a layer ({result['dispatches_per_layer']} kernels, {result['aten_calls_per_layer']} "
        f"ATen calls); torch's Metal backend: {result['peer_per_layer']}"
    )
    for kernel, count in result["kernels"].items():
        print(f"  {count} x {kernel}")
    for call, count in result["aten_calls"].items():
        print(f"  {count} x {call}: {result['aten_reasons'].get(call, '')}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.dispatches", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="end with one JSON object on a line of its own")
    parser.add_argument("--models", default=",".join(models.CONFIGS), help="default: %(default)s")
    parser.add_argument("--out", metavar="FILE", help="also write the figures, with the machine, to this file")
    parsed = parser.parse_args(arguments)
    names = parsed.models.split(",")
    for name in names:
        if name not in models.CONFIGS:
            parser.error(f"no model {name!r}; valid: {', '.join(models.CONFIGS)}")
    warnings.filterwarnings("ignore")
    results = {}
    for name in names:
        results[name] = measure(name)
        show(name, results[name])
    if parsed.out:
        with open(parsed.out, "w", encoding="utf-8") as file:
            json.dump({"models": results, "machine": machine.describe()}, file, indent=1)
            file.write("\n")
    if parsed.json:
        print(json.dumps({"models": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
