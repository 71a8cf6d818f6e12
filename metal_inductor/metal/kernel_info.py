"""What a host must know about one kernel of a translated Metal library."""

from __future__ import annotations

import dataclasses
import json

DEFAULT_MAX_THREADS = 1024
MAX_THREADGROUP_BYTES = 32768


@dataclasses.dataclass(frozen=True)
class Argument:
    """One parameter of a kernel, in declaration order.

    kind: 'buffer' and 'threadgroup' have an index, 'builtin' has the attribute's name in `builtin`, 'stage' is anything
    else. by_value_bytes: size of the scalar or vector that a `constant T&` names, None where only the compiler knows.
    """

    name: str
    kind: str
    index: int | None
    address_space: str | None
    type_text: str
    by_value_bytes: int | None = None
    builtin: str | None = None


@dataclasses.dataclass(frozen=True)
class KernelInfo:
    """One kernel: its host name, the symbol suffix of its compiled entry points, its arguments and its limits.

    threadgroup_bytes: bytes of static threadgroup variables; in a Translation, the maximum that a threadgroup may have
    (32768) where only the compiler can tell, in a loaded library what it told. uses_fibers: the kernel can reach a
    barrier or a simdgroup operation.
    """

    name: str
    symbol: str
    arguments: tuple[Argument, ...]
    threadgroup_bytes: int = 0
    max_threads: int = DEFAULT_MAX_THREADS
    uses_fibers: bool = False

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> KernelInfo:
        fields = json.loads(text)
        fields["arguments"] = tuple(Argument(**argument) for argument in fields["arguments"])
        return cls(**fields)
