"""The buffer into which a kernel reports errors: `ErrorMessages` of torch's c10/metal/error.h, and what it raises.

A count (uint32) is followed by 30 records of file[128], function[128], message[250] and line (uint32), all strings
ending in a zero byte. The count goes on counting when the records are used up.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import torch

_COUNT = struct.Struct("=I")
_RECORD = struct.Struct("=128s128s250s2xI")
_RECORDS = 30
_ERROR_CODE = 1  # what torch gives its exception for an error that a kernel reported


class ErrorBuffer:
    """Memory for the reports of one kernel call, empty at first; `tensor` (uint8) is what the kernel gets."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.tensor = torch.zeros(_COUNT.size + _RECORDS * _RECORD.size, dtype=torch.uint8, device=device)

    def among(self, arguments: Sequence[Any], index: int) -> tuple[Any, ...]:
        """The arguments of a call with this buffer as the one of that index, instead of what is there or behind all.

        TypeError for an index that is no int, ValueError for one that leaves a gap.
        """
        if not isinstance(index, int) or isinstance(index, bool):
            raise TypeError(f"error_buf_idx must be an int, got {type(index).__name__}")
        if not 0 <= index <= len(arguments):
            raise ValueError(f"error_buf_idx={index}: valid with {len(arguments)} arguments are 0 to {len(arguments)}")
        return (*arguments[:index], self.tensor, *arguments[index + 1 :])

    def check(self) -> None:
        """Raises torch.AcceleratorError with the text of the first report, if there is one, and where it was made."""
        head = self.tensor[: _COUNT.size + _RECORD.size].cpu().numpy().tobytes()
        (count,) = _COUNT.unpack_from(head)
        if not count:
            return
        file, function, message, line = _RECORD.unpack_from(head, _COUNT.size)
        others = f" and {count - 1} more" if count > 1 else ""
        error = torch.AcceleratorError(
            f"{_text(message)}\nreported by {_text(function)} at {_text(file)}:{line}{others}"
        )
        error.error_code = _ERROR_CODE
        raise error


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(errors="replace")
