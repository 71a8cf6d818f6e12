"""Updates of a graph's inputs are marked for writing in place exactly where nobody reads the old contents later."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from metal_inductor.passes.in_place import mark_in_place

aten = torch.ops.aten
BASE, NEW, AT = torch.randn(6, 4), torch.randn(2, 4), torch.tensor([1, 3])


def marked(function, *args):
    """How many updates the pass marks in the graph of `function`, which is functional but for its closing copies."""
    graph = make_fx(function, tracing_mode="fake")(*args).graph
    count = mark_in_place(graph)
    assert count == sum("metal_inplace" in node.meta for node in graph.nodes)
    return count


def put(base, new, at):
    return aten.index_put.default(base, [at], new)


@pytest.mark.parametrize(
    "update",
    [
        put,
        lambda base, new, at: aten.index_copy.default(base, 0, at, new),
        lambda base, new, at: aten.index_add.default(base, 0, at, new),
        lambda base, new, at: aten.slice_scatter.default(base, new, 0, 2, 4),
        lambda base, new, at: aten.select_scatter.default(base, new[0], 0, 5),
    ],
)
def test_an_update_that_is_copied_back_is_in_place(update):
    assert marked(lambda base, new, at: aten.copy_.default(base, update(base, new, at)), BASE, NEW, AT) == 1


def test_every_link_of_a_chain_is_in_place():
    def function(base, new, at):
        return aten.copy_.default(base, aten.slice_scatter.default(put(base, new, at), new, 0, 0, 2))

    assert marked(function, BASE, NEW, AT) == 2


def test_readers_before_the_update_do_not_matter():
    def function(base, new, at):
        before = base.sum()
        return before, aten.copy_.default(base, put(base, new, at))

    assert marked(function, BASE, NEW, AT) == 1


@pytest.mark.parametrize("read", [lambda base: base.sum(), lambda base: base.t()[1:].exp()])
def test_a_later_reader_of_the_old_contents_forbids_it(read):
    def function(base, new, at):
        view = base.t()  # a view taken before the update may be read after it
        updated = put(base, new, at)
        late = read(base) + view.sum()
        return late, aten.copy_.default(base, updated)

    assert marked(function, BASE, NEW, AT) == 0


def test_what_is_not_an_update_of_the_same_input_is_left_alone():
    def other_base(base, new, at, other):
        return aten.copy_.default(base, put(other, new, at))

    def computed(base, new, at, other):
        return aten.copy_.default(base, put(base * 2, new, at))

    def not_copied_back(base, new, at, other):
        return put(base, new, at)

    for function in (other_base, computed, not_copied_back):
        assert marked(function, BASE, NEW, AT, BASE.clone()) == 0
