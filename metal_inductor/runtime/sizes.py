"""Expressions of sizes, evaluated at every call of a graph whose shapes change."""

from __future__ import annotations

import math
import struct
from typing import Any

import sympy

from metal_inductor.torch_compat import python_text


class Sizes:
    """Values of the graph's symbols during one call."""

    _compiled: dict[sympy.Expr, Any] = {}

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._cache: dict[sympy.Expr, int] = {}

    def bind(self, symbol: sympy.Symbol, value: Any) -> None:
        """Gives `symbol` its value; what it was before is forgotten."""
        if self.values.get(symbol.name) != value:
            self._cache.clear()
        self.values[symbol.name] = value

    def evaluate(self, expr: Any) -> Any:
        """`expr` as a Python number."""
        if isinstance(expr, (int, float)):
            return expr
        if expr.is_Integer:
            return int(expr)
        value = self._cache.get(expr)
        if value is None:
            value = self._cache[expr] = self._function(expr)(self.values)
        return value

    def slot(self, kind: str, expr: Any) -> int:
        """`expr` as the 64-bit integer that a kernel's sizes array holds; a float travels as its float32 bits."""
        value = self.evaluate(expr)
        return struct.unpack("<i", struct.pack("<f", value))[0] if kind == "float" else int(value)

    @classmethod
    def _function(cls, expr: sympy.Expr) -> Any:
        function = cls._compiled.get(expr)
        if function is None:
            names = sorted(symbol.name for symbol in expr.free_symbols)
            unpack = ", ".join(f"({name} := env[{name!r}])" for name in names)
            text = python_text(expr)
            source = f"lambda env: [{unpack}, {text}][-1]" if names else f"lambda env: {text}"
            function = cls._compiled[expr] = eval(source, {"math": math, "torch": __import__("torch")})
        return function
