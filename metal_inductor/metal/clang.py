"""The compiler: clang from the ziglang wheel, or the one that METAL_INDUCTOR_CLANG names."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from . import clang_messages, instrumentation, tensor_cores
from .tokens import MetalSyntaxError

INCLUDE_DIRECTORY = pathlib.Path(__file__).parent / "include"
_LANGUAGE_FLAGS = (
    "-x", "clcpp", "-cl-std=clc++2021", "-cl-no-stdinc", "-nostdinc", "-Xclang", "-cl-ext=+all",
    "-cl-single-precision-constant", "-w", "-fno-elide-type", "-isystem", str(INCLUDE_DIRECTORY),
)  # fmt: skip
# Metal's safe math: no contraction, no reassociation. Errno and floating-point traps do not exist on a GPU. A number
# that an integer type does not hold becomes its nearest value.
_NUMERIC_FLAGS = (
    "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-char",
    "-fno-strict-float-cast-overflow", "-cl-fp32-correctly-rounded-divide-sqrt",
)  # fmt: skip
# A frame larger than a page is touched page by page, so that no stack overflow jumps over the guard page.
# The runtime knows where diverged lanes wait by their program counters, and lets the lowest go on first: the code keeps
# the order of the text, and a call stays in one place. Otherwise a loop may come behind what follows it.
_ORDER_FLAGS = tuple(
    argument
    for option in ("-disable-block-placement", "-disable-tail-duplicate", "-disable-early-taildup")
    for argument in ("-mllvm", option)
)
_CODE_FLAGS = (
    "-O3", "-fPIC", "-fvisibility=hidden", "-fstack-clash-protection", "-mllvm", "-runtime-memory-check-threshold=64",
    *_ORDER_FLAGS,
)  # fmt: skip
# Checked code has one address space for each of Metal's, and hooks before any access is moved or merged.
_CHECKED_FLAGS = (
    "-O1", "-fPIC", "-fvisibility=hidden", "-fstack-clash-protection", "-DMSL_CHECKS", "-gline-tables-only",
    "-Xclang", "-ffake-address-space-map", "-Xclang", "-disable-llvm-passes", "-S", "-emit-llvm",
)  # fmt: skip
_METAL_MACROS = (
    "-D__METAL__=1", "-D__METAL_VERSION__=320", "-D__METAL_MACOS__=1", "-D__HAVE_BFLOAT__=1",
    "-DMSL_PREPROCESSING", "-DMETAL_FUNC=inline",
)  # fmt: skip
_GLIBC_MINOR = 28  # the oldest glibc that torch's wheels run on
_PTX_VERSION = "ptx78"  # the first that knows sm_90: drivers from CUDA 11.8 on take it
_EXPORTED_FUNCTION = re.compile(r"^define dso_local (?!ptx_kernel)", re.M)
_CONSTANT_AS_GLOBAL = re.compile(r'addrspacecast \(ptr addrspace\(4\) (@(?:[\w.$]+|"[^"]*")) to ptr addrspace\(1\)\)')


@functools.cache
def command() -> tuple[str, ...]:
    """Command line that starts clang. Raises RuntimeError if there is none."""
    named = os.environ.get("METAL_INDUCTOR_CLANG")
    if named:
        path = pathlib.Path(named)
        if not path.is_file():
            raise RuntimeError(
                f"METAL_INDUCTOR_CLANG names {named!r}, which is not a file; it must be a clang or zig binary"
            )
        return (str(path), "clang") if path.stem.startswith("zig") else (str(path),)
    try:
        import ziglang
    except ImportError as error:
        raise RuntimeError("no Metal compiler: install the package 'ziglang' or set METAL_INDUCTOR_CLANG") from error
    binary = pathlib.Path(ziglang.__file__).parent / ("zig.exe" if sys.platform == "win32" else "zig")
    return (str(binary), "clang")


@functools.cache
def _target_flags(machine: str | None = None) -> tuple[str, ...]:
    """Flags for this machine's CPU, or for any CPU of the kind that `machine` names."""
    name = (machine or platform.machine()).lower()
    if name in ("x86_64", "amd64"):
        # Conversions of half by AVX512-FP16 do not give 0 for NaN, as those of all other processors do.
        return ("-target", "x86_64-linux-gnu", "-march=x86-64-v3" if machine else "-march=native", "-mno-avx512fp16")
    if name in ("aarch64", "arm64"):
        return ("-target", "aarch64-linux-gnu", "-mcpu=generic" if machine else "-mcpu=native")
    raise RuntimeError(f"Metal kernels do not compile for {name!r}; supported are x86_64 and aarch64")


@functools.cache
def identity() -> str:
    """What the result of a compilation depends on besides its text: compiler, machine, flags and headers."""
    version = subprocess.run([*command(), "--version"], capture_output=True, text=True, check=True).stdout
    probe = [*command(), *_target_flags(), "-###", "-x", "c", "-c", os.devnull, "-o", os.devnull]
    features = re.findall(
        r'"-target-(?:cpu|feature)" "([^"]*)"', subprocess.run(probe, capture_output=True, text=True).stderr
    )
    digest = hashlib.sha256(
        repr((version, features, _target_flags(), _NUMERIC_FLAGS, _CODE_FLAGS, _LANGUAGE_FLAGS[:-2])).encode()
    )
    for path in sorted(INCLUDE_DIRECTORY.rglob("*")):
        if path.is_file():
            digest.update(path.relative_to(INCLUDE_DIRECTORY).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def torch_include_directories() -> tuple[str, ...]:
    """Where `#include <c10/metal/...>` is found: the headers that torch itself ships."""
    found = importlib.util.find_spec("torch")
    directory = pathlib.Path(found.origin or "").parent / "include" if found else None
    return (str(directory),) if directory and directory.is_dir() else ()


def preprocess(source: str, include_dirs: Sequence[str | pathlib.Path], name: str) -> str:
    """Runs the C preprocessor with Metal's predefined macros. Raises MetalSyntaxError."""
    directories = (str(INCLUDE_DIRECTORY), *map(str, include_dirs), *torch_include_directories())
    arguments = [*command(), "-E", "-x", "c++", "-std=c++17", "-nostdinc", "-undef", *_METAL_MACROS]
    return _run([*arguments, *(f"-I{d}" for d in directories), "-"], _with_name(source, name)).decode()


def _with_name(source: str, name: str) -> str:
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'#line 1 "{quoted}"\n{source}'


# Text with this line has no signed sums that overflow. Otherwise they wrap, and an index of type int may begin again in
# the middle of a loop, which is then not vectorised: a one-row product took 2.5 times as long.
NO_OVERFLOW = "#pragma metal_inductor signed_overflow(undefined)"


# Text with this line has all 32 lanes active at every operation of a simdgroup, so that a GPU need not find out which
# are: 104 shuffles of attention each looked for their lanes and waited for a mask that was only known then.
WHOLE_SIMDGROUPS = "#pragma metal_inductor simdgroups(whole)"


# Text with this line finds out for itself which elements of an 8x8 matrix a lane holds, which Metal does not specify.
# So they may lie as a GPU's instructions want them: an exchange of lanes before and after each product is spared.
ANY_MATRIX_LAYOUT = "#pragma metal_inductor matrix_layout(any)"


def _numeric_flags(text: str) -> tuple[str, ...]:
    return _NUMERIC_FLAGS if NO_OVERFLOW in text else (*_NUMERIC_FLAGS, "-fwrapv")


def compile_cpu(translation_text: str) -> bytes:
    """Compiles the text of a Translation to a shared library for this machine. Raises MetalSyntaxError."""
    flags = (*_target_flags(), *_LANGUAGE_FLAGS, *_numeric_flags(translation_text), *_CODE_FLAGS)
    return _build(flags, translation_text)


def compile_object(text: str, machine: str, *, runtime: bool = False) -> bytes:
    """Compiles for another kind of CPU, 'x86_64' or 'aarch64', to an object file that a program can be linked from.

    text: that of a Translation for 'cpu' or, with runtime=True, C that needs no header. Raises MetalSyntaxError.
    """
    language = ("-x", "c", "-std=gnu11", "-nostdinc") if runtime else (*_LANGUAGE_FLAGS, *_numeric_flags(text))
    return _run([*command(), *_target_flags(machine), *language, *_CODE_FLAGS, "-c", "-", "-o", "-"], text)


def assembly_cpu(translation_text: str) -> str:
    """The text of a Translation in this machine's assembly language, quickly compiled. Raises MetalSyntaxError."""
    flags = (*_target_flags(), *_LANGUAGE_FLAGS, *_numeric_flags(translation_text), "-O1", "-S")
    return _run([*command(), *flags, "-", "-o", "-"], translation_text).decode()


def compile_cpu_checked(translation_text: str) -> tuple[bytes, instrumentation.Instrumented]:
    """As compile_cpu, with hooks for the run-time checks, and what their reports need to know of the text."""
    optimised = (*_target_flags(), "-w", "-x", "ir", "-O1", "-fPIC", *_ORDER_FLAGS)
    flags = (*_target_flags(), *_LANGUAGE_FLAGS, *_numeric_flags(translation_text), *_CHECKED_FLAGS)
    code = _run([*command(), *flags, "-", "-o", "-"], translation_text).decode()
    inline, library = [*command(), *optimised, "-S", "-emit-llvm", "-", "-o", "-"], str(INCLUDE_DIRECTORY)
    code = instrumentation.drop_private_hooks(_run(inline, instrumentation.hook_accesses(code)).decode(), library)
    instrumented = instrumentation.number_sites(_run(inline, code).decode(), library)
    return _build(optimised, instrumented.text), instrumented


def report_errors(translation_text: str, target: str) -> str:
    """Everything that clang has against the text of a Translation for a target, 'cpu' or 'cuda'; empty if nothing."""
    return _analyse(target, ("-ferror-limit=0",), translation_text).stderr.decode(errors="replace")


def syntax_tree(translation_text: str, target: str) -> str:
    """clang's dump of the syntax tree of a Translation's text; of what it understood where there are errors."""
    return _analyse(target, ("-Xclang", "-ast-dump"), translation_text).stdout.decode(errors="replace")


def _analyse(target: str, options: Sequence[str], text: str) -> subprocess.CompletedProcess[bytes]:
    machine = _cuda_target_flags("sm_80") if target == "cuda" else _target_flags()
    arguments = [*command(), *machine, *_LANGUAGE_FLAGS, *_numeric_flags(text), *options, "-fsyntax-only", "-"]
    return subprocess.run(arguments, input=text.encode(), capture_output=True)


def compile_cuda(translation_text: str, architecture: str = "sm_80") -> bytes:
    """Compiles the text of a Translation for CUDA to PTX, which the driver's cuModuleLoadData takes.

    architecture: the oldest GPU that it is for, 'sm_80' or later. Raises MetalSyntaxError.
    """
    target = _cuda_target_flags(architecture)
    language = [*_LANGUAGE_FLAGS, *_numeric_flags(translation_text)]
    language += ["-DMSL_WHOLE_SIMDGROUPS"] * (WHOLE_SIMDGROUPS in translation_text)
    language += ["-DMSL_OVERLAPPED_LAUNCHES=1"] * overlaps_launches(architecture)
    language += ["-DMSL_NATIVE_MATRICES"] * (ANY_MATRIX_LAYOUT in translation_text)
    unoptimised = ("-O3", "-Xclang", "-disable-llvm-passes", "-S", "-emit-llvm", "-", "-o", "-")
    code = _run([*command(), *target, *language, *unoptimised], translation_text).decode()
    # clang puts the values of constexpr variables into constant memory and takes them for global memory
    code = _CONSTANT_AS_GLOBAL.sub(r"\1", code).replace("addrspace(4)", "addrspace(1)")
    code = _EXPORTED_FUNCTION.sub("define internal ", code)  # inlined wherever it is called, and then not needed
    ptx = _run([*command(), *target, "-w", "-x", "ir", "-O3", "-S", "-", "-o", "-"], code)
    return tensor_cores.pair_products(ptx.decode()).encode() if ANY_MATRIX_LAYOUT in translation_text else ptx


def overlaps_launches(architecture: str) -> bool:
    """Whether kernels compiled for a GPU such as 'sm_90' wait for the kernel before them themselves, so that a graph
    may start them while that one ends."""
    return int(architecture.removeprefix("sm_").rstrip("af")) >= 90


def _cuda_target_flags(architecture: str) -> list[str]:
    target = ["-target", "nvptx64-nvidia-cuda", "-Xclang", "-target-cpu", "-Xclang", architecture]
    target += ["-Xclang", "-faddress-space-map-mangling=no"]  # else functions of device and constant share a name
    for feature in ("-ptx88", f"+{_PTX_VERSION}"):
        target += ["-Xclang", "-target-feature", "-Xclang", feature]
    return target


def compile_runtime(c_source: str) -> bytes:
    """Compiles C source of the runtime to a shared library for this machine. RuntimeError has clang's message."""
    flags = (*_target_flags(), "-x", "c", "-std=gnu11", *_libc_flags(), "-O2", "-fPIC")
    try:
        return _build(flags, c_source)
    except MetalSyntaxError as error:
        raise RuntimeError(f"the CPU runtime does not compile: {error}") from error


def _libc_flags() -> tuple[str, ...]:
    """Headers of the C library: zig brings its own, another clang uses the system's."""
    library = pathlib.Path(command()[0]).parent / "lib"
    if command()[1:] != ("clang",) or not library.is_dir():
        return ()
    family, machine = ("x86", "x86_64") if "x86_64" in _target_flags()[1] else ("aarch64", "aarch64")
    suffixes = ("linux-gnu", "linux-any")
    names = [f"{prefix}-{suffix}" for suffix in suffixes for prefix in dict.fromkeys((machine, family))]
    names[-1:-1] = ["generic-glibc"]
    names.append("any-linux-any")
    folders = [library / "include", *(library / "libc" / "include" / name for name in names)]
    existing = [argument for folder in folders if folder.is_dir() for argument in ("-isystem", str(folder))]
    return ("-nostdinc", f"-D__GLIBC_MINOR__={_GLIBC_MINOR}", *existing)


def _build(flags: Sequence[str], text: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="metal_inductor_") as folder:
        object_path, library_path = os.path.join(folder, "code.o"), os.path.join(folder, "code.so")
        _run([*command(), *flags, "-c", "-", "-o", object_path], text)
        _run([*_linker(), "-o", library_path, object_path], "")
        return pathlib.Path(library_path).read_bytes()


def _linker() -> tuple[str, ...]:
    """Names that stay undefined are found in the process: the runtime's functions and the C library."""
    if command()[1:] == ("clang",):
        return (command()[0], "ld.lld", "-shared", "--hash-style=gnu")
    return (*command(), *_target_flags()[:2], "-shared", "-nostdlib")


def _run(arguments: Sequence[str], text: str) -> bytes:
    process = subprocess.run(arguments, input=text.encode(), capture_output=True)
    if process.returncode:
        raise clang_messages.syntax_error(process.stderr.decode(errors="replace"), (str(INCLUDE_DIRECTORY),))
    return process.stdout
