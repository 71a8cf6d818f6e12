"""Index arithmetic: reshapes and simplifications agree with plain integer arithmetic at every point."""

import itertools
import math

import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from metal_inductor.indexing import floor_div, modular, reshape_map, simplify
from metal_inductor.ir import index_symbols


def evaluate(expr, values):
    def visit(node):
        if node.is_Integer:
            return int(node)
        if node.is_Symbol:
            return values[node]
        args = [visit(arg) for arg in node.args]
        if node.is_Add:
            return sum(args)
        if node.is_Mul:
            return math.prod(args)
        if isinstance(node, FloorDiv):
            return args[0] // args[1]
        assert isinstance(node, ModularIndexing)
        return args[0] // args[1] % args[2]

    return visit(sympy.sympify(expr))


def points(sizes):
    return itertools.product(*(range(size) for size in sizes))


@st.composite
def factorizations(draw):
    primes = draw(st.lists(st.sampled_from([1, 2, 2, 3, 5]), min_size=1, max_size=5))

    def split(values):
        sizes = [1]
        for value in values:
            if draw(st.booleans()):
                sizes.append(value)
            else:
                sizes[-1] *= value
        return tuple(sympy.Integer(size) for size in sizes)

    return split(primes), split(draw(st.permutations(primes)))


@given(factorizations())
@settings(max_examples=60, deadline=None)
def test_reshape_map_keeps_row_major_order(shapes):
    source, target = shapes
    symbols = index_symbols(len(target))
    flat_source = 0
    for position, point in enumerate(points(map(int, target))):
        values = dict(zip(symbols, point))
        flat_source = 0
        for index, size in zip(reshape_map(source, target), source):
            flat_source = flat_source * int(size) + evaluate(index, values)
        assert flat_source == position


@given(
    st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 5)),
    st.tuples(st.integers(0, 24), st.integers(0, 12), st.integers(0, 8)),
    st.integers(0, 5),
    st.integers(1, 24),
    st.integers(1, 12),
)
@settings(max_examples=100, deadline=None)
def test_division_and_remainder_are_exact(sizes, steps, offset, divisor, modulus):
    symbols = index_symbols(3)
    ranges = dict(zip(symbols, sizes))
    base = sum(step * symbol for step, symbol in zip(steps, symbols)) + sympy.Integer(offset)
    quotient, remainder = floor_div(base, divisor, ranges), modular(base, divisor, modulus, ranges)
    joined = simplify(modulus * FloorDiv(base, divisor * modulus) + ModularIndexing(base, divisor, modulus), ranges)
    for point in points(sizes):
        values = dict(zip(symbols, point))
        flat = evaluate(base, values)
        assert evaluate(quotient, values) == flat // divisor
        assert evaluate(remainder, values) == flat // divisor % modulus
        assert evaluate(joined, values) == flat // divisor


def test_splitting_and_merging_heads_needs_no_division():
    heads = tuple(map(sympy.Integer, (1, 9, 64)))
    i0, i1, i2 = index_symbols(3)
    assert reshape_map((sympy.Integer(576),), heads) == (64 * i1 + i2,)
    split = reshape_map(heads, (sympy.Integer(576),))
    assert simplify(64 * split[1] + split[2], {i0: 576}) == i0
