"""The memory plan shares memory only between buffers that are never alive together."""

import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from metal_inductor.plan import ALIGNMENT, Interval, arena_layout, command_buffer_cuts

lives = st.tuples(st.integers(0, 5000), st.integers(0, 30), st.integers(0, 12))


@given(st.lists(lives, max_size=40))
@settings(max_examples=200, deadline=None)
def test_buffers_alive_together_never_overlap(items):
    arena = [Interval(f"b{k}", sympy.Integer(size), first, first + span) for k, (size, first, span) in enumerate(items)]
    offsets, total, unshared = arena_layout(arena, int)
    assert total <= unshared
    for k, one in enumerate(arena):
        begin = offsets[one.buffer]
        assert begin % ALIGNMENT == 0 and begin + int(one.size) <= total
        for other in arena[:k]:
            if one.first <= other.last and other.first <= one.last:
                start = offsets[other.buffer]
                assert begin + int(one.size) <= start or start + int(other.size) <= begin


def test_a_chain_of_equal_buffers_needs_two():
    arena = [Interval(f"b{k}", sympy.Integer(ALIGNMENT), k, k + 1) for k in range(50)]
    assert arena_layout(arena, int)[1:] == (2 * ALIGNMENT, 50 * ALIGNMENT)


def test_a_hundred_kernels_are_seven_command_buffers():
    cuts = command_buffer_cuts(100, 16)
    assert len(cuts) == 7
    assert [end for _, end in cuts][:-1] == [begin for begin, _ in cuts][1:]
    assert cuts[0][0] == 0 and cuts[-1][1] == 100
    assert command_buffer_cuts(0, 16) == []
