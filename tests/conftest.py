"""Shared by all tests: one kernel cache for the session, the same seed and a fresh Dynamo for each test."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points

import pytest


@pytest.fixture(scope="session", autouse=True)
def kernel_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Kernels compiled by one test serve the next, in whatever worker, and none of the user's are read or written.

    A folder named by METAL_INDUCTOR_CACHE_DIR is kept, so that repeated runs are quick.
    """
    with pytest.MonkeyPatch.context() as patch:
        if "METAL_INDUCTOR_CACHE_DIR" not in os.environ:
            mine = tmp_path_factory.getbasetemp()
            shared = mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine
            patch.setenv("METAL_INDUCTOR_CACHE_DIR", str(shared / "kernels"))
        yield os.environ["METAL_INDUCTOR_CACHE_DIR"]


@pytest.fixture(scope="session", autouse=True)
def backend_by_name() -> None:
    """`backend="metal_inductor"` also where the tests run on a checkout that is not installed."""
    if "metal_inductor" not in entry_points(group="torch_dynamo_backends").names:
        from torch._dynamo import register_backend

        from metal_inductor.compiler import backend

        register_backend(backend, name="metal_inductor")


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
