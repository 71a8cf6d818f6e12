"""Tokens a second of language models at their real size, beside eager and Inductor, and where a step's time goes.

    python -m benchmarks.decode [--models llama1b,qwen3_06b] [--modes inductor,metal_inductor] [--output FILE.json]

Random bfloat16 weights, one sequence, a static cache that holds 2048 tokens, greedy choice of the next token. All ways
of running a model take turns in one process; the logits of each are compared with the same weights in float32. Beside
the JSON file goes a plot as PNG where matplotlib is installed; `python -m benchmarks.plot FILE.json` makes it
elsewhere.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import full_size, kernel_rows, kernels, machine, plot, step_profile, timing
from benchmarks.full_size import Decoder
from metal_inductor import report
from metal_inductor.compiler import backend

CHECKED_STEPS = 8  # the first ones, whose logits are compared; they compile, and record what CUDA graphs record
HOST_STEPS = 12
PROFILED_STEPS = 4
# Tokens of a cache beyond the context: attention reads them all, so their number is part of the figure.
LEAST_ROOM = 272
ERROR_LIMIT = 1.5  # times eager's own distance from float32

OURS = "metal_inductor"
MODES: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "eager": lambda forward: forward,
    "inductor": lambda forward: torch.compile(forward, fullgraph=True),
    "inductor-cudagraphs": lambda forward: torch.compile(forward, fullgraph=True, mode="reduce-overhead"),
    OURS: lambda forward: torch.compile(forward, fullgraph=True, backend=backend),
}
PEERS = ("inductor-cudagraphs", "inductor", "eager")  # the first that ran is what ours is compared with
GOALS = {"llama1b": 1.7, "qwen3_06b": 2.0}  # times Inductor with CUDA graphs


def not_here(mode: str, device: str) -> str | None:
    """Why a mode cannot run on a device."""
    return "CUDA graphs need an NVIDIA GPU" if mode == "inductor-cudagraphs" and device != "cuda" else None


def no_timeline(device: str) -> str | None:
    """Why the kernels of a step cannot be listed on a device."""
    reasons = {
        "mps": "torch.profiler records no kernels of mps",
        "cpu": "kernels of the CPU device run on threads that torch.profiler does not see",
    }
    return reasons.get(device)


class Decoding:
    """One mode of running a model along its cache: each step reads one token more."""

    def __init__(self, decoder: Decoder, forward: Callable[..., Any]) -> None:
        self.forward = forward
        self.with_cache = decoder.read_prompt()
        self.device = decoder.device
        self.position = decoder.prompt.shape[1]
        self.token = torch.zeros(1, 1, dtype=torch.long, device=self.device)

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of the next call, made anew for each as a generation loop does."""
        position = torch.full((1, 1), self.position, device=self.device)
        self.position += 1
        return {**self.with_cache, "position_ids": position}

    def logits(self) -> Tensor:
        return self.forward(self.token, **self.arguments()).logits[:, -1]

    def step(self) -> None:
        """One token of greedy decoding."""
        self.token.copy_(self.logits().argmax(-1, keepdim=True))

    def force(self, tokens: Sequence[int]) -> Tensor:
        """Logits after each of the tokens, in float32."""
        rows = []
        for token in tokens:
            self.token.fill_(token)
            rows.append(self.logits().float())  # a copy: a CUDA graph writes its outputs in place
        return torch.cat(rows)


@dataclass(frozen=True)
class Reference:
    """Logits of the checked steps with float32 weights, and how far eager's in bfloat16 are from them."""

    tokens: list[int]
    logits: Tensor
    eager_error: float

    def error(self, logits: Tensor) -> float:
        """Root mean square of the differences, over that of the logits."""
        return ((logits - self.logits).square().mean().sqrt() / self.logits.square().mean().sqrt()).item()


def reference(decoder: Decoder) -> Reference:
    generator = torch.Generator().manual_seed(1)
    vocabulary = decoder.model.config.vocab_size
    tokens = torch.randint(0, vocabulary, (CHECKED_STEPS,), generator=generator).tolist()
    exact = decoder.in_float32()
    result = Reference(tokens, Decoding(exact, exact.model.forward).force(tokens), 0.0)
    eager = Decoding(decoder, decoder.model.forward).force(tokens)
    return Reference(tokens, result.logits, result.error(eager))


def tokens_per_second(decoding: Decoding, steps: int, rounds: int) -> list[float]:
    """One figure a round of `steps` tokens; the host does not wait for the device within a round."""
    device, figures = decoding.device.type, []
    for _ in range(rounds):
        timing.synchronize(device)
        begin = time.perf_counter()
        for _ in range(steps):
            decoding.step()
        timing.synchronize(device)
        figures.append(steps / (time.perf_counter() - begin))
    return figures


def host_microseconds(decoding: Decoding) -> float:
    """Median time until a call of the model returns, from an idle device: on a GPU, what the host does."""
    times = []
    for _ in range(HOST_STEPS):
        arguments = decoding.arguments()
        timing.synchronize(decoding.device.type)
        begin = time.perf_counter()
        decoding.forward(decoding.token, **arguments)
        times.append((time.perf_counter() - begin) * 1e6)
    timing.synchronize(decoding.device.type)
    return statistics.median(times)


def measure(decoder: Decoder, mode: str, right: Reference, steps: int, rounds: int) -> dict[str, Any]:
    """Speed, accuracy and the parts of a step of one mode."""
    torch._dynamo.reset()
    device = decoder.device.type
    with torch.no_grad(), report.collect() as graphs:
        decoding = Decoding(decoder, MODES[mode](decoder.model.forward))
        begin = time.perf_counter()
        error = right.error(decoding.force(right.tokens))
        first = time.perf_counter() - begin
        speeds = tokens_per_second(decoding, steps, rounds)
        result = {
            "mode": mode,
            "tokens_per_s": round(max(speeds), 1),
            "rounds": [round(speed, 1) for speed in speeds],
            "first_steps_seconds": round(first, 1),
            "error": error,
            "agrees": error <= ERROR_LIMIT * right.eager_error,
            "host_us": round(host_microseconds(decoding), 1),
        }
        ours = [step_profile.kind_of_ours(kernel.kind) for graph in graphs for kernel in graph.kernels]
        return result | {"step": parts(decoding, ours)} | _dispatches(graphs, mode, device)


def parts(decoding: Decoding, ours: Sequence[str]) -> dict[str, Any]:
    reason = no_timeline(decoding.device.type)
    if reason is not None:
        return {"left_out": reason}
    return step_profile.profile(decoding.step, PROFILED_STEPS, ours)


def _dispatches(graphs: Sequence[report.GraphReport], mode: str, device: str) -> dict[str, Any]:
    """What a step of ours consists of."""
    if mode != OURS:
        return {}
    calls = {name: count for graph in graphs for name, count in graph.extern_calls.items()}
    return {"graphs": len(graphs), "dispatches": sum(graph.dispatches for graph in graphs), "aten_calls": calls}


def attempt(decoder: Decoder, mode: str, right: Reference, steps: int, rounds: int) -> dict[str, Any]:
    """`measure`, or the reason why there is no figure: one mode must not cost the others."""
    reason = not_here(mode, decoder.device.type)
    if reason is not None:
        return {"mode": mode, "left_out": reason}
    try:
        return measure(decoder, mode, right, steps, rounds)
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        return {"mode": mode, "failed": f"{type(error).__name__}: {first}"[:300]}
    finally:
        torch._dynamo.reset()
        gc.collect()
        if decoder.device.type == "cuda":
            torch.cuda.empty_cache()


def measure_model(name: str, options: argparse.Namespace, ceiling: float) -> dict[str, Any]:
    room = CHECKED_STEPS + options.rounds * options.steps + HOST_STEPS + PROFILED_STEPS + 1
    decoder = full_size.build(name, options.device, options.context, max(LEAST_ROOM, room))
    weights = full_size.weight_bytes(decoder.model)
    with torch.no_grad():
        right = reference(decoder)
    modes = [attempt(decoder, mode, right, options.steps, options.rounds) for mode in options.modes.split(",")]
    for mode in modes:
        if "tokens_per_s" in mode:
            mode["share_of_ceiling"] = round(weights * mode["tokens_per_s"] / 1e9 / ceiling, 4)
    result = {"model": name, "weight_bytes": weights, "cache_tokens": decoder.capacity, "modes": modes}
    return result | {"eager_error": right.eager_error} | compared(name, modes)


def compared(name: str, modes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Our speed over the best peer's, as far as both were measured."""
    speeds = {mode["mode"]: mode["tokens_per_s"] for mode in modes if "tokens_per_s" in mode}
    peer = next((peer for peer in PEERS if peer in speeds), None)
    if peer is None or OURS not in speeds:
        return {"peer": peer, "ratio": None, "goal": None, "ok": None}
    ratio = round(speeds[OURS] / speeds[peer], 3)
    goal = GOALS.get(name) if peer == PEERS[0] else None
    return {"peer": peer, "ratio": ratio, "goal": goal, "ok": None if goal is None else ratio >= goal}


def table(model: dict[str, Any]) -> list[str]:
    """The lines that are printed for a model."""
    goal = f" (goal {model['goal']}: {'yes' if model['ok'] else 'NO'})" if model["goal"] else ""
    ratio = f"; {OURS} is {model['ratio']} times {model['peer']}{goal}" if model["ratio"] else ""
    return [
        f"{model['model']}: {model['weight_bytes'] / 1e9:.2f} GB of weights a token{ratio}",
        f"  {'':22}{'tok/s':>9}{'share':>7}{'host us':>9}{'error':>10}  agrees",
        *(f"  {mode['mode']:22}{_speed(mode)}" for mode in model["modes"]),
        *_step_lines(model["modes"]),
    ]


def _speed(mode: dict[str, Any]) -> str:
    if "tokens_per_s" not in mode:
        return f"left out: {mode['left_out']}" if "left_out" in mode else f"failed: {mode['failed']}"
    figures = f"{mode['tokens_per_s']:9.1f}{mode['share_of_ceiling']:7.2f}{mode['host_us']:9.0f}{mode['error']:10.2e}"
    return f"{figures}  {'yes' if mode['agrees'] else 'NO'}"


def _step_lines(modes: Sequence[dict[str, Any]]) -> list[str]:
    """Where a step's time goes: kernels and their microseconds by kind, a column for each mode."""
    ran = [mode for mode in modes if "tokens_per_s" in mode]
    profiled = [mode for mode in ran if "kinds" in mode["step"]]
    if not profiled:
        return sorted({f"  parts of a step left out: {mode['step']['left_out']}" for mode in ran})
    names = sorted({name for mode in profiled for name in mode["step"]["kinds"]})
    rows: list[tuple[str, list[str]]] = [("us of a step", [mode["mode"] for mode in profiled])]
    for name in names:
        cells = [mode["step"]["kinds"].get(name) for mode in profiled]
        rows.append((name, [f"{cell['us']:.0f} in {cell['kernels']:.0f}" if cell else "-" for cell in cells]))
    for title, key in (("gaps between kernels", "gaps_us"), ("first kernel to last", "span_us")):
        rows.append((title, [f"{mode['step'][key]:.0f}" for mode in profiled]))
    rows.append(("step in a row of steps", [f"{1e6 / mode['tokens_per_s']:.0f}" for mode in profiled]))
    rows.append(("host, call of the model", [f"{mode['host_us']:.0f}" for mode in profiled]))
    return [f"  {title:24}" + "".join(f"{cell:>21}" for cell in cells) for title, cells in rows]


def run(options: argparse.Namespace) -> dict[str, Any]:
    """All models as one record, printed as they come."""
    begin = time.perf_counter()
    ceiling = kernels.measure_ceiling(options.device, 11, kernel_rows.CEILING_SHAPES[options.device])
    print(f"read ceiling: {ceiling:.0f} GB/s", flush=True)
    models = []
    for name in options.models.split(","):
        models.append(measure_model(name, options, ceiling))
        print("\n".join(table(models[-1])), flush=True)
    return {
        "benchmark": "decode",
        **machine.provenance(),
        "device": options.device,
        "context": options.context,
        "steps": options.steps,
        "read_ceiling_GB_per_s": round(ceiling, 1),
        "seconds": round(time.perf_counter() - begin, 1),
        "models": models,
    }


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m benchmarks.decode", description=__doc__.splitlines()[0])
    result.add_argument("--device", choices=("cuda", "mps", "cpu"), default=machine.best_device())
    result.add_argument("--models", default="llama1b,qwen3_06b", help="default: %(default)s; also: tiny")
    result.add_argument("--modes", default=",".join(MODES), help="default: %(default)s")
    result.add_argument("--context", type=int, default=2048, help="tokens that the cache holds; default: %(default)s")
    result.add_argument("--steps", type=int, default=64, help="tokens of a round; default: %(default)s")
    result.add_argument("--rounds", type=int, default=3, help="the best counts; default: %(default)s")
    result.add_argument("--output", type=Path, metavar="FILE.json", help="write the figures, and their plot")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status is 1 where a mode failed or its logits do not agree; a missed goal is a figure, no failure."""
    options = parser().parse_args(arguments)
    for what, given, valid in (("model", options.models, full_size.CONFIGS), ("mode", options.modes, MODES)):
        for name in given.split(","):
            if name not in valid:
                parser().error(f"no {what} {name!r}; valid: {', '.join(valid)}")
    warnings.filterwarnings("ignore")
    record = run(options)
    print(f"{record['seconds']} s", flush=True)
    if options.output:
        options.output.write_text(json.dumps(record, indent=1) + "\n")
        plot.beside(options.output)
    modes = [mode for model in record["models"] for mode in model["modes"]]
    return int(any("failed" in mode or not mode.get("agrees", True) for mode in modes))


if __name__ == "__main__":
    sys.exit(main())
