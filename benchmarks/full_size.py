"""Language models at their real size with random bfloat16 weights, and their caches with a context already read."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


def _llama1b(transformers: Any) -> Any:
    return transformers.LlamaConfig(
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        tie_word_embeddings=True,
    )


def _qwen3_06b(transformers: Any) -> Any:
    return transformers.Qwen3Config(
        vocab_size=151936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
    )


def _tiny(transformers: Any) -> Any:
    """For trying the benchmark itself."""
    return transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )


CONFIGS: dict[str, Callable[[Any], Any]] = {"llama1b": _llama1b, "qwen3_06b": _qwen3_06b, "tiny": _tiny}


@dataclass
class Decoder:
    """A model that continues one prompt, token by token."""

    model: Any
    prompt: torch.Tensor
    capacity: int  # tokens that a cache holds

    @property
    def device(self) -> torch.device:
        return self.prompt.device

    def read_prompt(self) -> dict[str, Any]:
        """A new static cache that holds the prompt, as keyword arguments of the next call of the model."""
        import transformers

        cache = transformers.StaticCache(config=self.model.config, max_cache_len=self.capacity)
        parameters = inspect.signature(self.model.forward).parameters
        arguments = {("cache" if "cache" in parameters else "past_key_values"): cache, "use_cache": True}
        self.model(self.prompt, logits_to_keep=1, **arguments)
        return arguments

    def in_float32(self) -> Decoder:
        """The same weights and prompt in float32."""
        return Decoder(copy.deepcopy(self.model).float(), self.prompt, self.capacity)


def build(name: str, device: str, context: int, steps: int) -> Decoder:
    """The model `name` with a random prompt of `context` tokens and room for `steps` more in its caches."""
    import transformers

    torch.manual_seed(0)
    config = CONFIGS[name](transformers)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    prompt = torch.randint(0, config.vocab_size, (1, context), device=device)
    return Decoder(model, prompt, context + steps)


def weight_bytes(model: Any) -> int:
    """Bytes of the weights that a token must read: all but an embedding that is not the head as well."""
    embedding = model.get_input_embeddings().weight
    everything = sum(parameter.nbytes for parameter in model.parameters())
    return everything if model.get_output_embeddings().weight is embedding else everything - embedding.nbytes
