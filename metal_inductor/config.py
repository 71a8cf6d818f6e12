"""Every option in one table: name, environment variable, type, default, meaning. All other modules read it from here.

An option given to `torch.compile(..., options={...})` wins over its environment variable, which wins over the default.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Option:
    """One row of the table. `kind` is bool, int, str or a path; a path or str without default is None."""

    name: str
    kind: type
    default: bool | int | str | None
    meaning: str
    default_text: str = ""  # what the README shows where `default` alone says too little
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    per_process: bool = False  # shared by all compilations: only its environment variable sets it

    @property
    def variable(self) -> str:
        return f"METAL_INDUCTOR_{self.name.upper()}"

    @property
    def valid(self) -> str:
        """What a value may be, in words."""
        if self.choices:
            return " or ".join(repr(choice) for choice in self.choices)
        if self.kind is int:
            return "an integer" if self.minimum is None else f"an integer of at least {self.minimum}"
        return {bool: "true or false", str: "text"}[self.kind]


@dataclass(frozen=True)
class Options:
    """The resolved options of one compilation."""

    mode: str
    fallback: str
    fusion: bool
    commit_every: int
    policy_device: str
    dump_dir: str | None
    cache: bool
    cache_dir: str | None
    clang: str | None
    cpu_threads: int
    cpu_schedule: int
    checks: str | None


TABLE: tuple[Option, ...] = (
    Option(
        "fallback",
        str,
        "warn",
        "What to do with an op that has no Metal kernel: `warn` once and run it as an ATen call with a recorded "
        "reason, or refuse to compile with `error`.",
        choices=("warn", "error"),
    ),
    Option("fusion", bool, True, "Fuse ops into common kernels. Off, each op gets its own: it finds a wrong fusion."),
    Option("commit_every", int, 16, "Kernels in one command buffer before it is handed to the GPU.", minimum=1),
    Option(
        "policy_device",
        str,
        "auto",
        "The device for which tile sizes are chosen. `auto` is the device of the graph; another name lets a CPU run "
        "the kernels of a GPU.",
        choices=("auto", "cpu", "mps", "cuda"),
    ),
    Option("dump_dir", str, None, "Folder to which each stage of each graph is written as text.", "nothing is written"),
    Option(
        "cache", bool, True, "Keep compiled kernels on disk. Off, they last as long as the process.", per_process=True
    ),
    Option("cache_dir", str, None, "Folder of the kernel cache.", "the platform's cache folder", per_process=True),
    Option(
        "clang",
        str,
        None,
        "The clang or zig that compiles Metal text off macOS.",
        "zig of the `ziglang` wheel",
        per_process=True,
    ),
    Option("cpu_threads", int, 0, "OS threads of the CPU device.", "one per core", minimum=0, per_process=True),
    Option(
        "cpu_schedule",
        int,
        0,
        "Seed of the order in which the CPU device runs the threads of a threadgroup; 0 is the fixed order. A race "
        "between threads shows as a result that changes with the seed.",
        minimum=0,
        per_process=True,
    ),
    Option(
        "checks",
        str,
        None,
        "Checks of kernels that run on the CPU device: `all`, or some of `races`, `bounds`, `alignment`, "
        "`uninitialised`, `barriers` with commas between them. What they find is raised as `MetalCheckError`.",
        "no checks",
        per_process=True,
    ),
)

_BY_NAME = {option.name: option for option in TABLE}
_PER_CALL = tuple(option.name for option in TABLE if not option.per_process)

MODES: dict[str, str] = {
    "default": "Fused kernels, replayed as a frozen list of dispatches.",
    "reduce-overhead": "The same as `default`: the frozen list already is what CUDA graphs are elsewhere.",
    "max-autotune": "The same as `default`: tile sizes are computed from shapes, nothing is timed while compiling.",
    "max-autotune-no-cudagraphs": "The same as `max-autotune`: there are no CUDA graphs to leave out.",
}

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


def resolve(options: Mapping[str, Any] | None = None, mode: str | None = None) -> Options:
    """The options of a `torch.compile` call, completed from the environment and the defaults.

    Raises ValueError for an unknown option or mode, or a value of the wrong type or outside the choices.
    """
    given = dict(options or {})
    for name in given:
        if name not in _BY_NAME:
            raise ValueError(_unknown("option", name, _PER_CALL))
        if _BY_NAME[name].per_process:
            variable = _BY_NAME[name].variable
            raise ValueError(f"metal_inductor option {name!r} holds for the whole process: set {variable} instead")
    mode = "default" if mode is None else mode
    if mode not in MODES:
        raise ValueError(_unknown("mode", mode, MODES))
    values = {name: _check(_BY_NAME[name], value) for name, value in given.items()}
    for name in _BY_NAME.keys() - values.keys():
        values[name] = from_environment(name)
    return Options(mode=mode, **values)


def from_environment(name: str) -> Any:
    """The value of one option when no call sets it: its environment variable, else the default.

    Raises ValueError that names the variable where its text is not valid.
    """
    option = _BY_NAME[name]
    text = os.environ.get(option.variable)
    if text is None or (text == "" and option.kind is not bool):
        return option.default
    try:
        return _check(option, _parse(option, text))
    except ValueError:
        raise ValueError(f"environment variable {option.variable}={text!r}: must be {option.valid}") from None


def _parse(option: Option, text: str) -> bool | int | str:
    if option.kind is bool:
        if text.lower() not in _TRUE + _FALSE:
            raise ValueError(text)
        return text.lower() in _TRUE
    return int(text) if option.kind is int else text


def _check(option: Option, value: Any) -> Any:
    """`value` if it is valid for the option, a path as text; ValueError otherwise."""
    if value is None and option.default is None:
        return None
    if option.kind is str and isinstance(value, os.PathLike):
        value = os.fspath(value)
    right_type = isinstance(value, option.kind) and (option.kind is bool or not isinstance(value, bool))
    if not right_type or (option.choices and value not in option.choices):
        raise ValueError(f"metal_inductor option {option.name}={value!r}: must be {option.valid}")
    if option.minimum is not None and value < option.minimum:
        raise ValueError(f"metal_inductor option {option.name}={value!r}: must be {option.valid}")
    return value


def _unknown(what: str, name: object, valid: Iterable[str]) -> str:
    names = sorted(valid)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"metal_inductor has no {what} {name!r}.{hint} Valid {what}s: {', '.join(names)}"


def markdown() -> str:
    """The options and the modes as the two tables of the README."""
    lines = ["| option | environment variable | default | meaning |", "|---|---|---|---|"]
    for option in TABLE:
        default = option.default_text or f"`{option.default}`"
        name = "(environment only)" if option.per_process else f"`{option.name}`"
        lines.append(f"| {name} | `{option.variable}` | {default} | {option.meaning} |")
    lines += ["", "| mode | meaning here |", "|---|---|"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in MODES.items()]
    return "\n".join(lines) + "\n"


def text(options: Options | None = None) -> str:
    """The values in force, one `name = value` a line."""
    options = options or resolve()
    return "\n".join(f"{field.name} = {getattr(options, field.name)!r}" for field in fields(options)) + "\n"
