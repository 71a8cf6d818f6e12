"""What the compiled model costs: graphs, dispatches, ATen calls, seconds, and whether it says what eager says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.utils import counters

from metal_inductor import config, report
from metal_inductor.demo.generate import Decoder, static_cache, tokens_per_second
from metal_inductor.demo.model import DemoError, LanguageModel

CACHE_ROUNDING = 64  # cache lengths are multiples of it, so that prompts of about one length share their kernels


@dataclass(frozen=True)
class Request:
    """What the command line asks for."""

    prompt: str
    device: str
    max_new_tokens: int
    model_path: str | None = None


@dataclass
class Compiled:
    """A compiled model that has run one prefill and one decode step, and what its compilation took."""

    decoder: Decoder
    prompt: torch.Tensor
    reports: list[report.GraphReport]
    graph_breaks: int
    seconds: float

    @property
    def kernels_compiled(self) -> int:
        return sum(graph.kernels_compiled for graph in self.reports)

    @property
    def kernels_reused(self) -> int:
        return sum(graph.kernels_reused for graph in self.reports)


def cache_length(prompt_tokens: int, max_new_tokens: int) -> int:
    return -(-(prompt_tokens + max_new_tokens) // CACHE_ROUNDING) * CACHE_ROUNDING


def compile_model(model: LanguageModel, request: Request) -> Compiled:
    """Compile prefill and decode by running each once. The seconds include both runs: it is what a user waits for."""
    prompt = model.encode(request.prompt)
    forward = torch.compile(model.module.forward, backend="metal_inductor", fullgraph=True)
    decoder = Decoder(forward, static_cache(model.module, cache_length(prompt.shape[1], request.max_new_tokens)))
    breaks = counters["graph_break"].total()
    with report.collect() as reports:
        start = time.perf_counter()
        decoder.step(decoder.step(prompt)).item()
        seconds = time.perf_counter() - start
    if not reports:
        raise DemoError("the metal_inductor backend compiled no graph: is TORCH_COMPILE_DISABLE set?")
    return Compiled(decoder, prompt, reports, counters["graph_break"].total() - breaks, seconds)


def eager_tokens(model: LanguageModel, compiled: Compiled, request: Request) -> tuple[list[int], list[float]]:
    """Tokens and seconds per step of the same loop over the same cache layout, uncompiled."""
    length = cache_length(compiled.prompt.shape[1], request.max_new_tokens)
    decoder = Decoder(model.module.forward, static_cache(model.module, length))
    return list(decoder.run(compiled.prompt, request.max_new_tokens, model.end_tokens)), decoder.seconds_per_step


def first_difference(tokens: list[int], expected: list[int]) -> int | None:
    """The first position at which the lists differ, one of them may have ended; None if they are equal."""
    if tokens == expected:
        return None
    pairs = zip(tokens, expected, strict=False)
    return next((i for i, (mine, theirs) in enumerate(pairs) if mine != theirs), min(len(tokens), len(expected)))


def decode(model: LanguageModel, compiled: Compiled, request: Request, emit: Callable[[str], None]) -> dict[str, Any]:
    """Generate, hand each new piece of text to `emit`, and count what ran: `text`, `tokens` and figures per token."""
    tokens: list[int] = []
    shown = ""
    with report.collect() as late_graphs:
        for token in compiled.decoder.run(compiled.prompt, request.max_new_tokens, model.end_tokens):
            tokens.append(token)
            text = model.tokenizer.decode(tokens, skip_special_tokens=True)
            if not text.endswith("\N{REPLACEMENT CHARACTER}"):  # half of a character: its other bytes follow
                emit(text[len(shown) :])
                shown = text
    compiled.reports += late_graphs
    return {
        "text": model.tokenizer.decode(tokens, skip_special_tokens=True),
        "tokens": tokens,
        "tokens_per_second": tokens_per_second(compiled.decoder.seconds_per_step),
        **per_token(compiled),
    }


def per_token(compiled: Compiled) -> dict[str, Any]:
    """Counted on one more decode step, of any token: dispatches, ATen calls with their reasons, command buffers."""
    before = {id(graph): graph.calls for graph in compiled.reports}
    compiled.decoder.step(torch.zeros(1, 1, dtype=compiled.prompt.dtype, device=compiled.prompt.device))
    runs = [(graph, graph.calls - before[id(graph)]) for graph in compiled.reports]
    calls: dict[str, dict[str, Any]] = {}
    for graph, times in runs:
        for extern in graph.externs * times:
            entry = calls.setdefault(extern.name, {"count": 0, "reason": extern.reason})
            entry["count"] += 1
            if extern.reason not in entry["reason"]:
                entry["reason"] += f"; {extern.reason}"
    return {
        "dispatches_per_token": sum(graph.dispatches * times for graph, times in runs),
        "aten_calls_per_token": sum(entry["count"] for entry in calls.values()),
        "aten_calls": calls,
        "command_buffers_per_token": sum(graph.command_buffers * times for graph, times in runs),
    }


def compile_seconds(compiled: Compiled, request: Request, started_cold: bool) -> dict[str, float | None]:
    """Seconds from an empty kernel cache (cold) and in a new process with a filled one (warm).

    The run at hand serves for one of the two when it qualifies; otherwise a new process measures. Both include capture,
    lowering and the first prefill and decode step. Warm is None where the cache is switched off.
    """
    cold: float | None = compiled.seconds if started_cold else None
    warm: float | None = compiled.seconds if compiled.kernels_compiled == 0 else None
    if cold is None:
        with tempfile.TemporaryDirectory(prefix="metal_inductor_cold_") as folder:
            cold = _in_new_process(request, {"METAL_INDUCTOR_CACHE_DIR": folder})
    if warm is None and config.from_environment("cache"):
        warm = _in_new_process(request, {})
    return {"compile_seconds_cold": cold, "compile_seconds_warm": warm}


def _in_new_process(request: Request, environment: dict[str, str]) -> float:
    command = [sys.executable, "-m", "metal_inductor", "demo", "--compile-only", "--json", "--prompt", request.prompt]
    command += ["--device", request.device, "--max-new-tokens", str(request.max_new_tokens)]
    if request.model_path:
        command += ["--model", request.model_path]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    if done.returncode != 0:
        raise DemoError(f"measuring the compile time in a new process failed:\n{done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])["compile_seconds"]
