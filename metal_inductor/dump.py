"""Stages of a compilation: timed, and written to `dump_dir` as text where the user asks for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from metal_inductor.report import GraphReport


class Stages:
    """Runs the stages of one graph; each is timed in the report and can be read back from the dump folder."""

    def __init__(self, report: GraphReport, dump_dir: str | None) -> None:
        self.report = report
        self.folder = None if dump_dir is None else Path(dump_dir) / f"{report.name}_{report.kind}"

    @contextmanager
    def run(self, name: str, describe: Callable[[], str]) -> Iterator[None]:
        """Times the block as stage `name`; `describe` gives the text of its result."""
        begin = time.perf_counter()
        yield
        self.report.stage_seconds[name] = time.perf_counter() - begin
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / f"{len(self.report.stage_seconds):02d}_{name}.txt").write_text(describe())
