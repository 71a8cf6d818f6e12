"""The demo's closing table."""

from __future__ import annotations

from typing import Any


def render(result: dict[str, Any]) -> str:
    """The measured figures of one run, a row each; ATen calls with their reasons below their count."""
    rows = [
        ("model", f"{result['model']}, {result['dtype']}, on {result['device']}"),
        ("graphs", str(result["graphs"])),
        ("graph breaks", str(result["graph_breaks"])),
        ("kernels compiled / reused", f"{result['kernels_compiled']} / {result['kernels_reused']}"),
        ("dispatches per token", str(result["dispatches_per_token"])),
        ("ATen calls per token", str(result["aten_calls_per_token"])),
        *((f"  {name}", f"{call['count']}: {call['reason']}") for name, call in sorted(result["aten_calls"].items())),
        ("command buffers per token", str(result["command_buffers_per_token"])),
        ("compile seconds, cold", f"{_seconds(result['compile_seconds_cold'])} (empty kernel cache)"),
        ("compile seconds, warm", f"{_seconds(result['compile_seconds_warm'])} (new process, filled kernel cache)"),
        ("tokens per second", _rate(result)),
        ("tokens equal eager", _verdict(result)),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _seconds(value: float | None) -> str:
    return "not measured, the cache is off" if value is None else f"{value:.1f}"


def _rate(result: dict[str, Any]) -> str:
    rates = [result["tokens_per_second"], result["tokens_per_second_eager"]]
    compiled, eager = ("-" if rate is None else f"{rate:.1f}" for rate in rates)
    return f"{compiled} (eager: {eager})"


def _verdict(result: dict[str, Any]) -> str:
    if result["tokens_match_eager"]:
        return "yes"
    return f"no, they part at token {result['first_difference']}"
