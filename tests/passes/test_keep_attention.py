"""Attention stays one node until lowering where the op can express the call, and is torch's own elsewhere."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from metal_inductor import attention_op, compiler
from metal_inductor.passes.keep_attention import keep_attention

Q, K = torch.randn(2, 4, 3, 8), torch.randn(2, 4, 5, 8)
attend = F.scaled_dot_product_attention


def kept(function, *args):
    """How many calls the pass rewrites in the graph that Dynamo traces."""
    counts = []

    def recording(gm, inputs):
        counts.append(keep_attention(gm))
        ours = sum(node.target is attention_op.attention.default for node in gm.graph.nodes)
        assert counts[-1] == ours
        return gm.forward

    expected = function(*args)
    torch.manual_seed(0)
    actual = torch.compile(function, backend=recording, fullgraph=True)(*args)
    if counts[0]:
        torch.testing.assert_close(actual, expected)
    return counts[0]


@pytest.mark.parametrize(
    "call",
    [
        lambda q, k: attend(q, k, k),
        lambda q, k: attend(q, k, k, is_causal=True),
        lambda q, k: attend(query=q, key=k, value=k, scale=0.25),
        lambda q, k: attend(q, k, k, torch.ones(3, 5, dtype=torch.bool)),
        lambda q, k: attend(q, k, k, attn_mask=k[:, :, None, :, 0]),
        lambda q, k: attend(q, k[:, :2], k[:, :2], enable_gqa=True),
        lambda q, k: attend(q[0, 0], k[0, 0], k[0, 0]),
    ],
)
def test_calls_that_the_op_expresses(call):
    assert kept(call, Q, K) == 1


def test_every_call_of_a_graph():
    assert kept(lambda q, k: attend(attend(q, k, k), k, k) + attend(q, q, q), Q, K) == 3


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32))
def test_dropout_and_double_precision_stay_torchs(dtype):
    dropout = 0.5 if dtype == torch.float32 else 0.0
    assert kept(lambda q, k: attend(q, k, k, dropout_p=dropout), Q.to(dtype), K.to(dtype)) == 0


def test_dropout_draws_eagers_numbers():
    def function(q, k):
        return attend(q, k, k, dropout_p=0.5)

    torch.manual_seed(7)
    expected = function(Q, K)
    torch.manual_seed(7)
    torch.testing.assert_close(torch.compile(function, backend=compiler.backend)(Q, K), expected)


def test_wrong_shapes_are_torchs_error():
    with pytest.raises(RuntimeError):
        torch.compile(attend, backend=compiler.backend)(Q, K[..., :7], K)
