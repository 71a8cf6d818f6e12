"""The demo from the model's file to the table: which stage follows which, and what is printed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from metal_inductor import cache_inventory, config
from metal_inductor.demo import measure, model, table
from metal_inductor.demo.generate import tokens_per_second
from metal_inductor.demo.progress import Progress


def main(arguments: argparse.Namespace) -> int:
    """Exit status 0 when the answer equals eager's, 1 when it does not or the demo cannot run."""
    try:
        device = arguments.device or model.available_devices()[0]
        model.check_device(device)
        request = measure.Request(arguments.prompt, device, arguments.max_new_tokens, arguments.model)
        return (_compile_only if arguments.compile_only else _answer)(request, arguments.json)
    except model.DemoError as error:
        print(f"metal-inductor demo: {error}", file=sys.stderr)
        return 1


def _compile_only(request: measure.Request, as_json: bool) -> int:
    compiled = measure.compile_model(model.load(request.model_path, request.device), request)
    result = {
        "compile_seconds": compiled.seconds,
        "kernels_compiled": compiled.kernels_compiled,
        "kernels_reused": compiled.kernels_reused,
    }
    print(json.dumps(result) if as_json else "\n".join(f"{name}: {value}" for name, value in result.items()))
    return 0


def _answer(request: measure.Request, as_json: bool) -> int:
    result = answer(request, (lambda text: None) if as_json else _write)
    print(json.dumps(result) if as_json else table.render(result))
    return 0 if result["tokens_match_eager"] else 1


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def answer(request: measure.Request, emit: Callable[[str], None]) -> dict[str, Any]:
    """Load, compile, answer (text goes to `emit` as it comes), check against eager, measure: the object of `--json`."""
    started_cold = not (config.from_environment("cache") and cache_inventory.entries())
    progress = Progress(stages=2)
    with progress.stage("loading the model"):
        language_model = model.load(request.model_path, request.device)
    with progress.stage("compiling"):
        compiled = measure.compile_model(language_model, request)
    progress.close()
    answered = measure.decode(language_model, compiled, request, emit)
    emit("\n\n")

    progress = Progress(stages=2)
    with progress.stage("checking against eager"):
        expected, eager_seconds = measure.eager_tokens(language_model, compiled, request)
    with progress.stage("measuring a second start"):
        seconds = measure.compile_seconds(compiled, request, started_cold)
    progress.close()
    return {
        "model": language_model.name,
        "device": request.device,
        "dtype": str(language_model.module.dtype).removeprefix("torch."),
        **answered,
        "tokens_match_eager": answered["tokens"] == expected,
        "first_difference": measure.first_difference(answered["tokens"], expected),
        "tokens_per_second_eager": tokens_per_second(eager_seconds),
        "graphs": len(compiled.reports),
        "graph_breaks": compiled.graph_breaks,
        "kernels_compiled": compiled.kernels_compiled,
        "kernels_reused": compiled.kernels_reused,
        **seconds,
    }
