"""`python -m metal_inductor metal FILE`: compiles Metal files, lists their kernels, prints what is wrong with them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import re
import sys
from collections.abc import Sequence

from . import clang, diagnostics, frontend
from .kernel_info import Argument, KernelInfo
from .tokens import MetalSyntaxError

CLEAN, ERRORS, MISUSE = 0, 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="Metal text; '-' reads standard input")
    parser.add_argument("--list", action="store_true", help="kernels with threadgroup memory, arguments and attributes")
    parser.add_argument("--check", action="store_true", help="every error, and warnings about known compiler bugs")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda compiles to PTX as well")
    parser.add_argument("-I", dest="include_dirs", action="append", default=[], metavar="DIR", help="for #include")
    parser.add_argument("-D", dest="defines", action="append", default=[], metavar="NAME[=VALUE]", help="a macro")
    parser.add_argument("--werror", action="store_true", help="a warning is an error")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def main(arguments: argparse.Namespace) -> int:
    """Exit status: 0 clean, 1 for errors (with --werror for warnings too), 2 for a call that cannot be served."""
    misuse = _misuse(arguments)
    if misuse:
        print(f"metal-inductor: {misuse}", file=sys.stderr)
        return MISUSE
    name = "<stdin>" if arguments.file == "-" else arguments.file
    source = sys.stdin.read() if arguments.file == "-" else pathlib.Path(arguments.file).read_text()
    found = _diagnose(arguments, source, name)
    failed = any(d.severity == "error" or arguments.werror for d in found)
    kernels: tuple[KernelInfo, ...] = ()
    if not any(d.severity == "error" for d in found):
        try:
            kernels = _compiled(diagnostics.with_definitions(source, arguments.defines, name), arguments, name)
        except MetalSyntaxError as error:
            found.append(_compile_error(error))
            failed = True
    _print(arguments, found, kernels)
    return ERRORS if failed else CLEAN


def _misuse(arguments: argparse.Namespace) -> str | None:
    if arguments.file != "-" and not pathlib.Path(arguments.file).is_file():
        return f"{arguments.file!r} is not a file"
    for folder in arguments.include_dirs:
        if not pathlib.Path(folder).is_dir():
            return f"-I {folder!r} is not a folder"
    for definition in arguments.defines:
        if not re.fullmatch(r"[A-Za-z_]\w*(?:=[^\n]*)?", definition):
            return f"-D {definition!r}: must be NAME or NAME=VALUE"
    return None


def _include_dirs(arguments: argparse.Namespace) -> list[str]:
    """Those that are named, behind the file's own folder, where `#include "..."` looks first."""
    own = [] if arguments.file == "-" else [str(pathlib.Path(arguments.file).parent)]
    return [*own, *arguments.include_dirs]


def _diagnose(arguments: argparse.Namespace, source: str, name: str) -> list[diagnostics.Diagnostic]:
    """Everything with --check or --werror, otherwise the first error."""
    found = diagnostics.diagnose(
        source,
        include_dirs=_include_dirs(arguments),
        name=name,
        target=arguments.device,
        defines=arguments.defines,
    )
    if arguments.check or arguments.werror:
        return found
    return [diagnostic for diagnostic in found if diagnostic.severity == "error"][:1]


def _compiled(text: str, arguments: argparse.Namespace, name: str) -> tuple[KernelInfo, ...]:
    """The kernels of a text that compiles; the CPU's library knows the exact size of threadgroup memory."""
    include_dirs = _include_dirs(arguments)
    if arguments.device == "cuda":
        translation = frontend.translate(text, target="cuda", include_dirs=include_dirs, name=name)
        clang.compile_cuda(translation.text)
    from metal_inductor.runtime.cpu import CpuLibrary

    library = CpuLibrary.load(text, include_dirs=include_dirs)
    return tuple(library.kernels.values())


def _compile_error(error: MetalSyntaxError) -> diagnostics.Diagnostic:
    message = str(error.msg).partition(": error: ")[2].splitlines()[0]
    return diagnostics.Diagnostic("error", error.filename, error.lineno, 1, message)


def _print(
    arguments: argparse.Namespace, found: Sequence[diagnostics.Diagnostic], kernels: Sequence[KernelInfo]
) -> None:
    if arguments.json:
        listed = {"diagnostics": [dataclasses.asdict(d) for d in found]}
        listed["kernels"] = [json.loads(kernel.to_json()) for kernel in kernels]
        print(json.dumps(listed, indent=2))
        return
    for diagnostic in found:
        print(diagnostic)
    if arguments.check:
        errors = sum(d.severity == "error" for d in found)
        counts = {"error": errors, "warning": len(found) - errors, "kernel": len(kernels)}
        print(", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items()))
    if arguments.list or not arguments.check:
        print("".join(_described(kernel) for kernel in kernels), end="")


def _described(kernel: KernelInfo) -> str:
    head = (
        f"kernel {kernel.name}\n  threadgroup memory: {kernel.threadgroup_bytes} bytes\n"
        f"  max threads per threadgroup: {kernel.max_threads}\n"
    )
    rows = [_row(argument) for argument in kernel.arguments]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    return head + "".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)).rstrip() + "\n"
        for row in rows
    )


def _row(argument: Argument) -> tuple[str, str, str, str]:
    """Where an argument is bound, its address space, its type and its name."""
    if argument.kind == "builtin":
        return f"[[{argument.builtin}]]", "", argument.type_text, argument.name
    return f"{argument.kind}({argument.index})", argument.address_space or "", argument.type_text, argument.name
