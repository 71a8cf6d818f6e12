"""Small transformers with random weights: logits, compiled graphs and kernels of real architectures, and training."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from metal_inductor import report

transformers = pytest.importorskip("transformers")

SIZES = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
EXTRA = {
    "llama": {},
    "qwen3": {},
    "gemma3_text": {"sliding_window": 8},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "phi3": {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "gpt2": {},
    "whisper": {},
}
# What must not lose its fast test: each decoder with the kernels of an Apple GPU, and two of them with a CPU's.
FAST = {("mps", name) for name in EXTRA if name != "mixtral"} | {("cpu", "mixtral"), ("cpu", "gemma3_text")}
CALLS = [
    pytest.param(policy, name, marks=() if (policy, name) in FAST else pytest.mark.slow)
    for policy in ("mps", "cpu")
    for name in EXTRA
]
PROMPT, STEPS, SOUNDS = 5, 20, 12


def make(model_type, **changes):
    """A model in evaluation mode and its configuration. Its weights are large enough for every layer to show in the
    logits."""
    changes = {"initializer_range": 0.2, **changes} if model_type != "whisper" else {"init_std": 0.2, **changes}
    if model_type == "whisper":
        config = transformers.WhisperConfig(
            vocab_size=97, d_model=32, encoder_layers=1, decoder_layers=2, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=8,
            max_source_positions=SOUNDS, max_target_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
            decoder_start_token_id=1, **changes,
        )  # fmt: skip
        torch.manual_seed(0)
        return transformers.WhisperForConditionalGeneration(config).eval(), config
    if model_type == "gpt2":
        config = transformers.GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64, **changes)
    else:
        config = transformers.AutoConfig.for_model(model_type, **{**SIZES, **HEADS, **EXTRA[model_type], **changes})
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval(), config


def decoder_arguments(config):
    """What a call gets beside its tokens: a static cache and, for whisper, what its encoder has heard."""
    cache = transformers.StaticCache(config=config, max_cache_len=64)
    if config.model_type != "whisper":
        return {"past_key_values": cache}
    heard = torch.randn(1, SOUNDS, config.d_model, generator=torch.Generator().manual_seed(3))
    crossing = transformers.StaticCache(config=config, max_cache_len=SOUNDS)
    return {
        "past_key_values": transformers.EncoderDecoderCache(cache, crossing),
        "encoder_outputs": transformers.modeling_outputs.BaseModelOutput(last_hidden_state=heard),
    }


def logits(forward, config, tokens):
    """(tokens, vocabulary): the logits of a prefill of PROMPT tokens and of one decode step for each token after."""
    given = decoder_arguments(config)
    whisper = config.model_type == "whisper"
    names = ("decoder_input_ids", "decoder_position_ids") if whisper else ("input_ids", "position_ids")
    pieces = [(0, PROMPT)] + [(k, k + 1) for k in range(PROMPT, tokens.shape[1])]
    rows = []
    with torch.no_grad():
        for begin, end in pieces:
            call = dict(zip(names, (tokens[:, begin:end], torch.arange(begin, end)[None])))
            rows.append(forward(**call, **given, use_cache=True).logits[0])
    return torch.cat(rows)


@pytest.mark.parametrize(("policy", "model_type"), CALLS)
def test_prefill_and_twenty_decode_steps_give_eagers_logits(policy, model_type):
    model, config = make(model_type)
    tokens = torch.randint(0, 97, (1, PROMPT + STEPS))
    expected = logits(model.forward, config, tokens)
    assert expected.abs().max() > 1
    options = {"policy_device": policy}  # a graph break would raise:
    compiled = torch.compile(model.forward, backend="metal_inductor", fullgraph=True, options=options)
    with report.collect() as graphs:
        actual = logits(compiled, config, tokens)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert len(graphs) <= 3  # prefill, decode, and decode for any length seen so far
    assert sum(graph.calls for graph in graphs) == 1 + STEPS
    if model_type != "mixtral":
        assert [call.name for graph in graphs[1:] for call in graph.externs] == []


def decode_report(layers):
    """The report of a llama's decode step."""
    model, config = make("llama", num_hidden_layers=layers)
    cache = transformers.StaticCache(config=config, max_cache_len=64)
    with torch.no_grad():
        model(torch.zeros(1, 3, dtype=torch.long), past_key_values=cache, use_cache=True)
        step = torch.compile(model.forward, backend="metal_inductor", fullgraph=True)
        with report.collect() as graphs:
            step(torch.tensor([[5]]), past_key_values=cache, use_cache=True, position_ids=torch.tensor([[3]]))
    torch._dynamo.reset()
    (graph,) = graphs
    return graph


def test_kernels_do_not_grow_with_layers_and_a_layer_is_few_launches():
    shallow, deep = decode_report(2), decode_report(30)
    assert shallow.distinct_kernels <= deep.distinct_kernels <= shallow.distinct_kernels + 2
    launches = [graph.dispatches + len(graph.externs) for graph in (shallow, deep)]
    assert (launches[1] - launches[0]) / 28 <= 16


class Block(nn.Module):
    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.packed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        query, key, value = self.packed(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(F.gelu(self.wide(self.second(x))))


class Transformer(nn.Module):
    def __init__(self, vocabulary=29, width=16):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        scores = self.head(self.blocks(self.embed(tokens[:, :-1])))
        return F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())


def train(optimizer, compiled):
    """Losses of 20 steps from the same weights on the same tokens."""
    torch.manual_seed(1)
    model = Transformer()
    step = torch.compile(model, backend="metal_inductor", fullgraph=True) if compiled else model
    update = optimizer(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        loss = step(torch.randint(0, 29, (3, 9)))
        update.zero_grad()
        loss.backward()
        update.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("optimizer", (torch.optim.SGD, torch.optim.AdamW))
def test_twenty_training_steps_give_eagers_losses(optimizer):
    with report.collect() as graphs:
        actual = train(optimizer, compiled=True)
    assert [graph.kind for graph in graphs] == ["forward", "backward"]
    torch.testing.assert_close(actual, train(optimizer, compiled=False), rtol=0, atol=1e-4)
    assert len(set(actual)) == 20
