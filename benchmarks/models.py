"""Small random models of real architectures, with a static cache that holds a prompt: a decode step comes next."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

VOCABULARY, PROMPT_TOKENS, CACHE_LENGTH = 512, 8, 64
SHAPE = {"vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 256}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
EXPERTS = {"moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2}


@dataclass
class DecodeStep:
    """One token through the model: `forward(token, **arguments)`; the cache in `arguments` holds the prompt."""

    forward: Callable[..., Any]
    token: torch.Tensor
    arguments: dict[str, Any]


def _llama(transformers: Any, depth: int) -> Any:
    return transformers.LlamaConfig(**SHAPE, **HEADS, num_hidden_layers=depth)


def _qwen3(transformers: Any, depth: int) -> Any:
    return transformers.Qwen3Config(**SHAPE, **HEADS, head_dim=32, num_hidden_layers=depth)


def _qwen3_moe(transformers: Any, depth: int) -> Any:
    return transformers.Qwen3MoeConfig(**SHAPE, **HEADS, **EXPERTS, head_dim=32, num_hidden_layers=depth)


def _lfm2_moe(transformers: Any, depth: int) -> Any:
    kinds = [("conv", "full_attention")[index % 2] for index in range(depth)]
    return transformers.Lfm2MoeConfig(
        **SHAPE, **HEADS, **EXPERTS, num_hidden_layers=depth, num_dense_layers=0, layer_types=kinds
    )


CONFIGS: dict[str, Callable[[Any, int], Any]] = {
    "llama": _llama,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "lfm2_moe": _lfm2_moe,
}


def decode_step(name: str, depth: int, device: str = "cpu", dtype: torch.dtype = torch.bfloat16) -> DecodeStep:
    """The model `name` with `depth` layers, ready for its first token after the prompt."""
    import transformers

    torch.manual_seed(0)
    config = CONFIGS[name](transformers, depth)
    model = transformers.AutoModelForCausalLM.from_config(config).eval().to(device, dtype)
    cache = transformers.StaticCache(config=config, max_cache_len=CACHE_LENGTH)
    parameters = inspect.signature(model.forward).parameters
    arguments = {("cache" if "cache" in parameters else "past_key_values"): cache, "use_cache": True}
    prompt = torch.randint(0, VOCABULARY, (1, PROMPT_TOKENS), device=device)
    with torch.no_grad():
        model(prompt, **arguments)
    return DecodeStep(model.forward, prompt[:, :1], arguments)
