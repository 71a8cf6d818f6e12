"""The command line: `python -m metal_inductor` and the console script `metal-inductor`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from metal_inductor import __version__, config
from metal_inductor.demo import command as demo
from metal_inductor.metal import command as metal


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="metal-inductor", description=sys.modules["metal_inductor"].__doc__)
    root.add_argument("--version", action="version", version=f"metal-inductor {__version__}")
    commands = root.add_subparsers(dest="command", required=True)

    demo_parser = commands.add_parser("demo", help="a real language model answers a question")
    demo.add_arguments(demo_parser)
    demo_parser.set_defaults(run=demo.main)

    config_parser = commands.add_parser("config", help="the options and their values in force")
    config_parser.add_argument("--markdown", action="store_true", help="the table of options for the README")
    config_parser.set_defaults(run=_config)

    metal_parser = commands.add_parser("metal", help="compile a Metal file, list its kernels, print what is wrong")
    metal.add_arguments(metal_parser)
    metal_parser.set_defaults(run=metal.main)

    cache_parser = commands.add_parser("cache", help="the kernel cache on disk")
    cache_parser.add_argument("action", choices=("info", "clear"))
    cache_parser.set_defaults(run=_cache)
    return root


def _config(arguments: argparse.Namespace) -> int:
    print(config.markdown() if arguments.markdown else config.text(), end="")
    return 0


def _cache(arguments: argparse.Namespace) -> int:
    from metal_inductor import cache_inventory

    if arguments.action == "clear":
        print(f"removed {cache_inventory.clear()} entries")
        return 0
    for name, value in cache_inventory.info().items():
        print(f"{name}: {value}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = parser().parse_args(arguments)
    try:
        return parsed.run(parsed)
    except ValueError as error:
        if "METAL_INDUCTOR_" not in str(error):
            raise
        print(f"metal-inductor: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
