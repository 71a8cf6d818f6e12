"""Devices that run Metal text on this machine: every test that takes `metal_device` runs on each of them."""

from __future__ import annotations

import pytest
import torch

METAL_DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
collect_ignore = [] if torch.cuda.is_available() else ["test_compile_shader_cuda.py"]


@pytest.fixture(scope="session", params=METAL_DEVICES)
def metal_device(request: pytest.FixtureRequest) -> str:
    """ "cpu", and "cuda" where there is a GPU."""
    return request.param
