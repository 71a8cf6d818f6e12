"""What clang's OpenCL mode accepts and Metal does not."""

from __future__ import annotations

from .outline import Outline
from .tokens import Tokens

_FORBIDDEN = {
    "double": "'double' is not supported in Metal",
    "goto": "'goto' is not supported in Metal",
    "new": "'new' is not supported in Metal",
    "delete": "'delete' is not supported in Metal",
    "throw": "exceptions are not supported in Metal",
    "try": "exceptions are not supported in Metal",
    "catch": "exceptions are not supported in Metal",
    "virtual": "virtual functions are not supported in Metal",
    "dynamic_cast": "'dynamic_cast' is not supported in Metal",
    "typeid": "'typeid' is not supported in Metal",
    "thread_local": "'thread_local' is not supported in Metal",
    "asm": "'asm' is not supported in Metal",
}


def check(tokens: Tokens, outline: Outline) -> None:
    """Raises MetalSyntaxError for the first construct that Metal rejects."""
    for i in tokens.significant:
        message = _FORBIDDEN.get(tokens[i])
        if message and not (tokens[i] == "delete" and tokens[tokens.before(i)] == "="):
            raise tokens.error(i, message)
