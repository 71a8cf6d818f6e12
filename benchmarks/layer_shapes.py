"""The linear layers of well-known models: what a token's one row is multiplied with, as (outputs, inputs)."""

from __future__ import annotations

Shape = tuple[int, int]
Layers = dict[str, Shape]


def dense(hidden: int, queries: int, keys: int, wide: int, vocabulary: int | None = None) -> Layers:
    """Attention and a gated feed-forward network of `wide` features; the head where there is a vocabulary."""
    layers = {
        "q": (queries, hidden),
        "kv": (keys, hidden),
        "o": (hidden, queries),
        "gate_up": (wide, hidden),
        "down": (hidden, wide),
    }
    return layers | ({"head": (vocabulary, hidden)} if vocabulary else {})


def experts(
    hidden: int, queries: int, keys: int, wide: int, number: int, vocabulary: int | None = None, **others: Shape
) -> Layers:
    """Attention and `number` experts behind a router, each as `dense` has one; `others` are layers of this model."""
    layers = dense(hidden, queries, keys, wide, vocabulary)
    renamed = {f"expert_{name}" if name in ("gate_up", "down") else name: shape for name, shape in layers.items()}
    return renamed | {"router": (number, hidden)} | others


def encoder(hidden: int, wide: int, vocabulary: int | None = None) -> Layers:
    """Attention of one width and a plain feed-forward network."""
    layers = {"q": (hidden, hidden), "fc1": (wide, hidden), "fc2": (hidden, wide)}
    return layers | ({"head": (vocabulary, hidden)} if vocabulary else {})


MODELS: dict[str, Layers] = {
    "bert-minilm": encoder(384, 1536),
    "deepseek-v2-lite": experts(2048, 3072, 576, 1408, 64),
    "gemma3-1b": dense(1152, 1024, 256, 6912, 262144),
    "gemma3-4b": dense(2560, 2048, 1024, 10240, 262144),
    "gpt-oss-20b": experts(2880, 4096, 512, 2880, 32),
    "lfm2-8b-a1b": experts(
        *(2048, 2048, 512, 1792, 32, 65536),
        conv_in=(6144, 2048),
        conv_out=(2048, 2048),
        dense_gate_up=(7168, 2048),
        dense_down=(2048, 7168),
    ),
    "llama-3.1-8b": dense(4096, 4096, 1024, 14336, 128256),
    "llama-3.1-70b": dense(8192, 8192, 1024, 28672),
    "llama-3.2-1b": dense(2048, 2048, 512, 8192, 128256),
    "llama-3.2-3b": dense(3072, 3072, 1024, 8192, 128256),
    "mistral-7b": dense(4096, 4096, 1024, 14336, 32768),
    "mixtral-8x7b": experts(4096, 4096, 1024, 14336, 8, 32000),
    "phi-4-mini": dense(3072, 3072, 1024, 8192),
    "qwen3-0.6b": dense(1024, 2048, 1024, 3072, 151936),
    "qwen3-1.7b": dense(2048, 2048, 1024, 6144, 151936),
    "qwen3-4b": dense(2560, 4096, 1024, 9728, 151936),
    "qwen3-8b": dense(4096, 4096, 1024, 12288, 151936),
    "qwen3-30b-a3b": experts(2048, 4096, 512, 768, 128, 151936),
    "qwen3.5-35b-a3b": experts(
        *(2048, 4096, 512, 512, 256, 248320),
        shared_gate=(1, 2048),
        delta_ba=(64, 2048),
        delta_qkvz=(12288, 2048),
        delta_out=(2048, 4096),
    ),
    "qwen3.8-27b-like": dense(5120, 6144, 1024, 17408, 248320),
    "smollm2-135m": dense(576, 576, 192, 1536, 49152),
    "smollm2-1.7b": dense(2048, 2048, 2048, 8192, 49152),
    "whisper-large-v3": encoder(1280, 5120, 51866),
}


def shapes() -> list[Shape]:
    """Each shape once, by outputs and then inputs."""
    return sorted({shape for layers in MODELS.values() for shape in layers.values()})
