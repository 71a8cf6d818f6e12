"""Index expressions (sympy) as Metal text."""

from __future__ import annotations

from collections.abc import Callable

import sympy
from torch.utils._sympy.functions import CeilDiv, FloorDiv, Identity, Mod, ModularIndexing, PythonMod

from metal_inductor.indexing import Ranges, is_nonnegative


class IndexPrinter:
    """Prints index expressions. `size_slot(expr)` names a value that only the host can compute (an expression of
    sizes); `names` are C names of symbols."""

    def __init__(
        self,
        ranges: Ranges,
        names: dict[sympy.Symbol, str],
        size_slot: Callable[[sympy.Expr], str],
        index_type: str,
    ) -> None:
        self.ranges = ranges
        self.names = names
        self.size_slot = size_slot
        self.index_type = index_type

    def __call__(self, expr: sympy.Expr) -> str:
        expr = sympy.sympify(expr)
        if expr.is_Integer:
            return _integer(int(expr))
        if expr.is_Symbol and expr in self.names:
            return self.names[expr]
        if not any(symbol in self.names for symbol in expr.free_symbols):
            return self.size_slot(expr)
        method = getattr(self, f"_print_{type(expr).__name__}", None)
        if method is None:
            raise NotImplementedError(f"no Metal text for index expression {expr} ({type(expr).__name__})")
        return method(expr)

    def _print_Add(self, expr: sympy.Expr) -> str:
        fixed = [arg for arg in expr.args if not any(s in self.names for s in arg.free_symbols)]
        moving = sorted((a for a in expr.args if a not in fixed), key=sympy.default_sort_key)
        parts = [self(arg) for arg in moving] + ([self(sympy.Add(*fixed))] if fixed else [])
        return "(" + " + ".join(parts) + ")"

    def _print_Mul(self, expr: sympy.Expr) -> str:
        fixed = [arg for arg in expr.args if not any(s in self.names for s in arg.free_symbols)]
        moving = sorted((a for a in expr.args if a not in fixed), key=sympy.default_sort_key)
        parts = ([self(sympy.Mul(*fixed))] if fixed else []) + [self(arg) for arg in moving]
        return "(" + " * ".join(parts) + ")"

    def _print_Pow(self, expr: sympy.Expr) -> str:
        base, exponent = expr.args
        if not exponent.is_Integer or exponent < 1:
            raise NotImplementedError(f"no Metal text for index expression {expr}")
        return "(" + " * ".join([self(base)] * int(exponent)) + ")"

    def _print_FloorDiv(self, expr: FloorDiv) -> str:
        base, divisor = expr.args
        if is_nonnegative(base, self.ranges):
            return f"({self(base)} / {self(divisor)})"
        return self._call("index_floor_div", base, divisor)

    def _call(self, function: str, *args: sympy.Expr) -> str:
        """A helper function, its arguments in the kernel's index type: a literal alone is an int."""
        return f"{function}({', '.join(f'{self.index_type}({self(arg)})' for arg in args)})"

    def _print_CeilDiv(self, expr: CeilDiv) -> str:
        base, divisor = expr.args
        return self(FloorDiv(base + divisor - 1, divisor))

    def _print_ModularIndexing(self, expr: ModularIndexing) -> str:
        base, divisor, modulus = expr.args
        if not is_nonnegative(base, self.ranges):
            return self._call("index_floor_mod", FloorDiv(base, divisor), modulus)
        quotient = self(base) if divisor == 1 else f"({self(base)} / {self(divisor)})"
        if divisor != 1 and divisor.is_Integer and int(divisor) % 65536 == 0:
            # Metal's compiler gets (x / 65536) % n wrong where it fuses the two (pytorch PR 175481).
            return f"index_safe_mod({self.index_type}({quotient}), {self.index_type}({self(modulus)}))"
        return f"({quotient} % {self(modulus)})"

    def _print_Mod(self, expr: sympy.Expr) -> str:
        return self._call("index_floor_mod", *expr.args)

    _print_PythonMod = _print_Mod

    def _print_Identity(self, expr: Identity) -> str:
        return self(expr.args[0])

    def _fold(self, expr: sympy.Expr, function: str) -> str:
        text = self(expr.args[0])
        for arg in expr.args[1:]:
            text = f"{function}({self.index_type}({text}), {self.index_type}({self(arg)}))"
        return text

    def _print_Max(self, expr: sympy.Expr) -> str:
        return self._fold(expr, "index_max")

    def _print_Min(self, expr: sympy.Expr) -> str:
        return self._fold(expr, "index_min")


def _integer(value: int) -> str:
    if -(2**31) < value < 2**31:
        return str(value) if value >= 0 else f"({value})"
    return f"{value}L" if value >= 0 else f"({value}L)"


__all__ = ["IndexPrinter", "Mod", "PythonMod"]
