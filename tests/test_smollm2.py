"""A real language model with its real weights gives eager's answers. Slow: minutes on a laptop-class CPU."""

import pytest
import torch

pytest.importorskip("transformers")

from metal_inductor.demo import generate, model  # noqa: E402
from metal_inductor.report import collect  # noqa: E402

pytestmark = pytest.mark.slow

PROMPTS = (
    "What is the capital of France? Answer in one sentence.",
    "Write a haiku about the sea.",
    "List three uses of a hammer.",
    "Explain why the sky is blue to a child.",
    "def fibonacci(n):",
)
CACHE_LENGTH = 160


def compiled(module):
    return torch.compile(module.forward, backend="metal_inductor", fullgraph=True)


def test_float32_tokens_equal_eager_for_five_prompts():
    language_model = model.load(None, "cpu", torch.float32)
    module = language_model.module
    eager = generate.Decoder(module.forward, generate.static_cache(module, CACHE_LENGTH))
    ours = generate.Decoder(compiled(module), generate.static_cache(module, CACHE_LENGTH))
    for prompt in PROMPTS:
        tokens = language_model.encode(prompt)
        expected = list(eager.run(tokens, 64, frozenset()))
        assert len(expected) == 64
        assert list(ours.run(tokens, 64, frozenset())) == expected, prompt


def logits_of(forward, module, tokens, prompt_length):
    """Teacher-forced logits (steps, vocabulary) of prefill and decode, as float64."""
    cache = generate.static_cache(module, CACHE_LENGTH)
    rows = []
    pieces = [tokens[:, :prompt_length]] + [tokens[:, k : k + 1] for k in range(prompt_length, tokens.shape[1])]
    with torch.no_grad():
        for piece in pieces:
            output = forward(piece, use_cache=True, logits_to_keep=1, past_key_values=cache)
            rows.append(output.logits[0, -1].double())
    return torch.stack(rows)


def test_bfloat16_logits_are_as_close_to_float64_as_eagers():
    language_model = model.load(None, "cpu", torch.bfloat16)
    module = language_model.module
    prompt = language_model.encode(PROMPTS[0])
    generator = torch.Generator().manual_seed(0)
    more = torch.randint(100, 40000, (1, 12), generator=generator)
    tokens = torch.cat([prompt, more], dim=1)
    ours = logits_of(compiled(module), module, tokens, prompt.shape[1])
    eager = logits_of(module.forward, module, tokens, prompt.shape[1])
    exact = logits_of(module.double().forward, module, tokens, prompt.shape[1])
    our_error, eager_error = ((x - exact).pow(2).mean().sqrt().item() for x in (ours, eager))
    assert our_error <= 1.5 * eager_error


def test_generate_with_a_static_cache_gives_eagers_text():
    language_model = model.load(None, "cpu", torch.float32)
    module, prompt = language_model.module, language_model.encode(PROMPTS[0])
    arguments = {"max_new_tokens": 8, "do_sample": False, "cache_implementation": "static", "disable_compile": True}
    expected = module.generate(prompt, **arguments)
    module.forward = torch.compile(module.forward, backend="metal_inductor")
    with collect() as reports:
        assert torch.equal(module.generate(prompt, **arguments), expected)
    assert sum(report.calls for report in reports) >= 8
