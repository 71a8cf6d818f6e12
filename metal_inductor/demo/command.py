"""The `demo` subcommand's arguments. torch and transformers are imported once it runs, so that `--help` is quick."""

from __future__ import annotations

import argparse

PROMPT = "What is the capital of France? Answer in one sentence."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt", default=PROMPT, help="what to ask (default: %(default)s)")
    parser.add_argument("--max-new-tokens", type=_positive, default=64, help="longest answer (default: %(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda", "mps"), help="default: the best there is")
    parser.add_argument("--model", metavar="PATH", help="a local transformers folder or GGUF file (default: SmolLM2)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text and table")
    parser.add_argument("--compile-only", action="store_true", help="compile, report the seconds, answer nothing")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def main(arguments: argparse.Namespace) -> int:
    """Exit status 0 when the answer equals eager's, 1 when it does not or the demo cannot run."""
    from metal_inductor.demo import run

    return run.main(arguments)
