"""Greedy generation with a static cache: one loop for eager and compiled, so that their tokens can be compared."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch


def static_cache(module: torch.nn.Module, length: int) -> Any:
    """A key and value cache of `length` positions, allocated now: a compiled prefill must not allocate it."""
    from transformers import StaticCache

    config = module.config.get_text_config()
    cache = StaticCache(config=config, max_cache_len=length)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cache.early_initialization(1, heads, head_dim, module.dtype, module.device)
    return cache


@dataclass
class Decoder:
    """Feeds tokens to `forward` (eager or compiled) and picks the most likely next one.

    One cache serves all runs of a decoder, since a compiled graph is bound to its cache's tensors.
    """

    forward: Callable[..., Any]
    cache: Any
    seconds_per_step: list[float] = field(default_factory=list)
    cache_argument: str = field(init=False)

    def __post_init__(self) -> None:
        # transformers renamed `past_key_values` to `cache` in its fifth major version
        parameters = inspect.signature(self.forward).parameters
        self.cache_argument = "cache" if "cache" in parameters else "past_key_values"

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens (1, n) follow what the cache holds; returns the next token (1, 1) on the same device."""
        with torch.no_grad():
            output = self.forward(tokens, use_cache=True, logits_to_keep=1, **{self.cache_argument: self.cache})
        return output.logits[:, -1:].argmax(-1)

    def run(self, prompt: torch.Tensor, limit: int, end_tokens: frozenset[int]) -> Iterator[int]:
        """Up to `limit` tokens after `prompt` (1, n); stops before an end token. Times each decode step."""
        self.cache.reset()
        self.seconds_per_step.clear()
        token = self.step(prompt)
        for position in range(limit):
            value = token.item()
            if value in end_tokens:
                return
            yield value
            if position + 1 < limit:
                start = time.perf_counter()
                token = self.step(token)
                token.item()  # waits for the device
                self.seconds_per_step.append(time.perf_counter() - start)


def tokens_per_second(seconds_per_step: list[float]) -> float | None:
    """From the median step: the first steps after a pause run on cold processor caches. None without a step."""
    if not seconds_per_step:
        return None
    return 1.0 / sorted(seconds_per_step)[len(seconds_per_step) // 2]
