"""Metal Shading Language text -> C++ for OpenCL text that clang compiles for a CPU."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Container, Mapping, Sequence

from metal_inductor import policy

from . import clang, places, reconvergence, rewrite, strict_types, strictness, threadgroup_memory
from .entry_points import cuda_entry_point, entry_points
from .kernel_info import DEFAULT_MAX_THREADS, MAX_THREADGROUP_BYTES, KernelInfo
from .kernel_parser import Instantiation, Kernel, erase_forward_declarations, find_instantiations, find_kernels
from .outline import Outline, parse_outline
from .reachability import functions_with_memory, synchronising_functions
from .tokens import MetalSyntaxError, Tokens

__all__ = ["MetalSyntaxError", "Translation", "translate"]

_STANDARD_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<(?:metal_\w+|simd/\w+\.h)>[^\n]*", re.M)
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(?!pragma\b)\w", re.M)
# Every access here reaches memory that all threads share, once a fence orders it.
_COHERENCE = re.compile(r"\bcoherent[ \t]*\([ \t]*(?:device|system|threadgroup|simdgroup)[ \t]*\)")
_LINE_MARKER = re.compile(r'^# (\d+) ("[^"\n]*").*$', re.M)
_PREDEFINED = re.compile(r"\b__(?:METAL|HAVE|LINE|FILE|COUNTER)\w*__\b|\b_Pragma\b|\bMETAL_FUNC\b")


@dataclasses.dataclass(frozen=True)
class Translation:
    """C++ for OpenCL text of a Metal library, and its kernels in the order of their symbols."""

    text: str
    kernels: tuple[KernelInfo, ...]


def translate(
    source: str,
    *,
    target: str = "cpu",
    include_dirs: Sequence[str | pathlib.Path] = (),
    name: str = "<metal>",
    constants: Mapping[int | str, object] | None = None,
) -> Translation:
    """Translates a Metal library.

    target: 'cpu', or 'cuda' for text that clang.compile_cuda takes. include_dirs: where `#include` looks besides
    torch's own headers. name: file name in messages.
    constants: values of function constants by index or name; the others are undefined and read as zero.
    Raises MetalSyntaxError, whose first line is "<name>:LINE: error: message" with a line of the user's text.
    """
    if target not in ("cpu", "cuda"):
        raise ValueError(f"target {target!r} is not supported; valid are 'cpu' and 'cuda'")
    tokens = tokenise(source, include_dirs, name)
    outline = parse_outline(tokens)
    strictness.check(tokens, outline)
    draft = rewritten(tokens, outline, target, constants)
    draft.check_types()
    return Translation(draft.text(), draft.kernels)


def tokenise(source: str, include_dirs: Sequence[str | pathlib.Path], name: str) -> Tokens:
    """The tokens of a text with its macros and includes expanded. Raises MetalSyntaxError."""
    text = _preprocess(source, include_dirs, name)
    return Tokens(_COHERENCE.sub(lambda found: " " * len(found.group()), text), name)


@dataclasses.dataclass(frozen=True)
class Draft:
    """A translated library before it is one text. suspicious: its types are to be checked, see `strict_types`."""

    tokens: Tokens
    target: str
    kernels: tuple[KernelInfo, ...]
    definitions: str
    entries: list[tuple[str, str]]  # function and text of each
    suspicious: bool

    def text(self) -> str:
        entries = [text for _, text in self.entries]
        return _assemble(self.tokens.join(), self.tokens.name, self.definitions, entries)

    def text_for_analysis(self) -> str:
        """The same with lines counted as in `places.flat_text`, in a file `strict_types.FILE`, and few instances."""
        chosen = policy.instances_to_check([function for function, _ in self.entries])
        entries = [self.entries[number][1] for number in chosen]
        return _assemble(places.flat_text(self.tokens), strict_types.FILE, self.definitions, entries)

    def check_types(self) -> None:
        """Raises MetalSyntaxError for the first violation that shows in types alone."""
        for index, message in self.type_violations():
            raise self.tokens.error(index, message)

    def type_violations(self) -> list[tuple[int, str]]:
        """(token index, message)"""
        if not self.suspicious:
            return []
        found = strict_types.violations(clang.syntax_tree(self.text_for_analysis(), self.target))
        return [(places.index_at(self.tokens, line, column), message) for line, column, message in found]


def rewritten(
    tokens: Tokens, outline: Outline, target: str, constants: Mapping[int | str, object] | None = None
) -> Draft:
    """Rewrites the tokens of a library and makes its entry points. Raises MetalSyntaxError."""
    suspicious = strict_types.suspicious(tokens, outline, places.user_tokens(tokens, clang.torch_include_directories()))
    erase_forward_declarations(tokens, outline)
    kernels = find_kernels(tokens, outline)
    instantiations = find_instantiations(tokens, outline)
    synchronising, anonymous = synchronising_functions(tokens, outline)
    remembering, anonymous_memory = functions_with_memory(tokens, outline)
    zeroing = {k.function.qualified_name for k in kernels if threadgroup_memory.has_initialisers(tokens, k.function)}
    sizes = {k.function.qualified_name: threadgroup_memory.place_variables(tokens, k.function) for k in kernels}
    meetings = reconvergence.meetings_in_loops(tokens, outline, synchronising) if target == "cpu" else []
    constant_numbers = _rewrite_language(tokens, outline)
    reconvergence.make(tokens, meetings)
    memory = {name for name, size in sizes.items() if size != 0}
    for kernel in kernels:
        if kernel.function.qualified_name in memory:
            _add_memory_parameter(tokens, kernel)
    infos, entries = [], []
    for host_name, expression, scope, kernel in _named_kernels(tokens, outline, kernels, instantiations, memory):
        size = sizes[kernel.function.qualified_name]
        info = KernelInfo(
            name=host_name,
            symbol=f"msl_k{len(infos)}",
            arguments=kernel.arguments,
            threadgroup_bytes=MAX_THREADGROUP_BYTES if size is None else size,
            max_threads=kernel.max_threads or DEFAULT_MAX_THREADS,
            uses_fibers=anonymous
            or kernel.function.name in synchronising
            or kernel.function.qualified_name in zeroing
            or any(a.kind == "threadgroup" for a in kernel.arguments),
        )
        infos.append(info)
        in_registers = not anonymous_memory and kernel.function.name not in remembering
        if target == "cuda":
            entry = cuda_entry_point(info, expression, size != 0, kernel.function.qualified_name in zeroing)
        else:
            entry = entry_points(info, expression, size != 0, in_registers)
        entry = f"namespace {'::'.join(scope)} {{\n{entry}}}\n" if scope else entry
        entries.append((kernel.function.qualified_name, entry))
    definitions = _constant_definitions(constant_numbers, constants or {})
    return Draft(tokens, target, tuple(infos), definitions, entries, suspicious)


def _preprocess(source: str, include_dirs: Sequence[str | pathlib.Path], name: str) -> str:
    """Expands macros and includes; a text without any is spared the run of the preprocessor."""
    plain = _STANDARD_INCLUDE.sub("", source)
    if not _DIRECTIVE.search(plain) and not _PREDEFINED.search(plain):
        return plain
    expanded = clang.preprocess(source, include_dirs, name)
    return _LINE_MARKER.sub(r"#line \1 \2", expanded)


def _add_memory_parameter(tokens: Tokens, kernel: Kernel) -> None:
    """The parameter that brings the memory of the kernel's threadgroup variables."""
    comma = "," if kernel.arguments else ""
    tokens.items[kernel.function.parameters] = f"(threadgroup char *{threadgroup_memory.BLOCK}{comma}"


def _rewrite_language(tokens: Tokens, outline: Outline) -> dict[str, int]:
    numbers = rewrite.rewrite_function_constants(tokens)
    rewrite.erase_attributes(tokens)
    rewrite.rewrite_constants(tokens, outline)
    rewrite.rewrite_parameters(tokens, outline)
    rewrite.rewrite_function_arguments(tokens, outline)
    rewrite.rewrite_strings(tokens, outline)
    rewrite.rewrite_method_spaces(tokens, outline)
    rewrite.rewrite_swizzles(tokens, outline)
    rewrite.rewrite_literals(tokens)
    rewrite.rewrite_conditionals(tokens)
    rewrite.rewrite_unions(tokens, outline)
    rewrite.rewrite_added_constants(tokens)
    rewrite.rename_reserved(tokens)
    return numbers


def _named_kernels(
    tokens: Tokens,
    outline: Outline,
    kernels: list[Kernel],
    instantiations: list[Instantiation],
    memory: Container[str],
):
    """(host name, expression, namespaces it is written in, kernel) of every kernel that a host can call.

    memory: the kernels that are given the memory of threadgroup variables.
    """
    by_name = {k.function.name: k for k in kernels}
    seen: set[str] = set()
    for kernel in kernels:
        function = kernel.function
        if function.name not in outline.templates:
            host_name = _unique(tokens, kernel, kernel.host_name or function.name, seen)
            yield host_name, f"::{function.qualified_name}", (), kernel
    for instance in instantiations:
        kernel = by_name.get(instance.function)
        if kernel is None:
            valid = ", ".join(sorted(by_name)) or "none"
            raise tokens.error(
                instance.begin, f"'{instance.function}' is not a kernel of this library; its kernels are: {valid}"
            )
        yield _unique(tokens, kernel, instance.name, seen), _instance(instance, kernel, memory), instance.scope, kernel


def _instance(instance: Instantiation, kernel: Kernel, memory: Container[str]) -> str:
    """The function of an instantiation. Without template arguments its type chooses them."""
    if instance.parameters is None:
        return instance.expression
    parameters = instance.parameters
    if kernel.function.qualified_name in memory:
        parameters = f"threadgroup char *{',' if parameters else ''}{parameters}"
    return f"static_cast<void (*)({parameters})>({instance.expression})"


def _unique(tokens: Tokens, kernel: Kernel, host_name: str, seen: set[str]) -> str:
    if host_name in seen:
        raise tokens.error(kernel.function.name_at, f"two kernels have the name '{host_name}'")
    seen.add(host_name)
    return host_name


def _constant_definitions(numbers: Mapping[str, int], values: Mapping[int | str, object]) -> str:
    """Macros that give each function constant its value."""
    unknown = [key for key in values if key not in numbers and key not in numbers.values()]
    if unknown:
        raise ValueError(f"no function constant {unknown[0]!r} in this library; valid are {sorted(numbers)}")
    lines = []
    for name, number in numbers.items():
        value = values.get(name, values.get(number))
        literal = {True: "true", False: "false", None: "{}"}.get(value, str(value)) if value is not None else "{}"
        lines.append(f"#define MSL_FUNCTION_CONSTANT_{number} {literal}")
        lines.append(f"#define MSL_FUNCTION_CONSTANT_DEFINED_{number} {'true' if value is not None else 'false'}")
    return "".join(line + "\n" for line in lines)


def _assemble(body: str, name: str, definitions: str, entries: list[str]) -> str:
    """User functions are inlined throughout, so that a barrier or shuffle has one address per place in the text."""
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    return (
        f'#include <metal_stdlib>\n#include "msl/entry.h"\n{definitions}'
        "#pragma clang attribute push(__attribute__((always_inline)), apply_to = function)\n"
        f'namespace {strict_types.MARKER} {{}}\n#line 1 "{quoted}"\n{body}\n'
        '#line 1 "<entry points>"\n#pragma clang attribute pop\n' + "".join(entries)
    )
