"""A progress bar on stderr for the demo's stages: it ticks while a stage runs, and prints nothing off a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TICK_SECONDS = 0.5


class Progress:
    """One step a stage. Use `with progress.stage("compile"):` for each, then `close()`."""

    def __init__(self, stages: int, shown: bool | None = None) -> None:
        self._bar = _bar(stages) if (sys.stderr.isatty() if shown is None else shown) else None

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        if self._bar is None:
            yield
            return
        self._bar.set_description(name)
        done = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(done,), daemon=True)
        ticker.start()
        try:
            yield
        finally:
            done.set()
            ticker.join()
            self._bar.update()

    def _tick(self, done: threading.Event) -> None:
        while not done.wait(TICK_SECONDS):
            self._bar.refresh()

    def close(self) -> None:
        """Removes the bar, so that what is printed next has a clean line."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _bar(stages: int) -> Any:
    from tqdm import tqdm

    layout = "{desc:<24} {bar:30} {n_fmt}/{total_fmt} stages, {elapsed}"
    return tqdm(total=stages, bar_format=layout, file=sys.stderr, leave=False)
