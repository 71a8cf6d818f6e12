"""How much of torch's op database compiles to the right result, and how much of it runs wholly in our own kernels.

    python -m benchmarks.coverage [--ops a,b] [--json OUT] [--backend NAME] [--workers N]

The first float32 sample of each op goes through torch.compile and is compared with eager. Some ops break Dynamo's graph
(sparse tensors, results whose shape depends on data); they are compared too, and never count as run in our kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks import machine
from benchmarks.coverage_worker import float32_ops

SECONDS_PER_OP = 90.0  # the slowest take some 20 on a busy machine


class Worker:
    """A child process that checks ops; it is replaced when it dies or hangs."""

    def __init__(self, backend: str, cores: int) -> None:
        self._command = [sys.executable, "-m", "benchmarks.coverage_worker", backend]
        self._environment = {**os.environ, "METAL_INDUCTOR_CPU_THREADS": str(cores), "OMP_NUM_THREADS": str(cores)}
        self._process: subprocess.Popen[str] | None = None

    def check(self, name: str) -> dict[str, Any]:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                env=self._environment,
            )  # fmt: skip
        process, expired = self._process, threading.Event()
        timer = threading.Timer(SECONDS_PER_OP, lambda: (expired.set(), process.kill()))
        timer.start()
        try:
            process.stdin.write(name + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if line:
            return json.loads(line)
        self._process = None
        status = process.wait()
        if expired.is_set():
            return {"name": name, "status": "hangs", "detail": f"no answer in {SECONDS_PER_OP:.0f} seconds"}
        return {"name": name, "status": "crashes", "detail": f"the process ended with status {status}"}

    def close(self) -> None:
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait()


def check_all(names: Sequence[str], backend: str, workers: int) -> list[dict[str, Any]]:
    """One result an op, in the order of `names`."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        waiting.put(name)
    results: dict[str, dict[str, Any]] = {}
    cores = max(1, (os.cpu_count() or 1) // workers)

    def serve() -> None:
        worker = Worker(backend, cores)
        while True:
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                return worker.close()
            results[name] = worker.check(name)
            if sys.stderr.isatty():
                print(f"\r{len(results)} of {len(names)}", end="", file=sys.stderr, flush=True)

    threads = [threading.Thread(target=serve) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[name] for name in names]


def wholly_ours(result: dict[str, Any]) -> bool:
    """Equal to eager, captured whole, and without an ATen call. A graph of views alone counts: it needs no kernel."""
    captured = result.get("graphs", 0) > 0 and not result["graph_breaks"]
    return result["status"] == "equal" and captured and not result["externs"]


def summarise(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    ours = sum(map(wholly_ours, results))
    return {
        "ops": len(results),
        "equal": sum(result["status"] == "equal" for result in results),
        "failed": dict(Counter(result["status"] for result in results if result["status"] != "equal")),
        "wholly_in_kernels": ours,
        "share_wholly_in_kernels": round(ours / len(results), 4),
        "aten_calls": dict(Counter(name for result in results for name in result.get("externs", ())).most_common()),
    }


def show(summary: dict[str, Any], results: Sequence[dict[str, Any]]) -> None:
    for result in results:
        if result["status"] != "equal":
            print(f"{result['name']}: {result['status']}: {result['detail']}")
    print(f"ops {summary['ops']}, equal to eager {summary['equal']}, failed {summary['failed'] or 0}")
    print(
        f"wholly in our kernels {summary['wholly_in_kernels']} of {summary['ops']}: "
        f"{100 * summary['share_wholly_in_kernels']:.1f} %"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.coverage", description=__doc__.splitlines()[0])
    parser.add_argument("--ops", help="only these, separated by commas")
    parser.add_argument("--json", metavar="OUT", help="write every result to this file")
    parser.add_argument("--backend", default="metal_inductor", help="default: %(default)s")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes (default: one per core)")
    parsed = parser.parse_args(arguments)
    known = float32_ops()
    names = parsed.ops.split(",") if parsed.ops else list(known)
    for name in names:
        if name not in known:
            parser.error(f"no float32 op {name!r} in torch's op database")
    results = check_all(names, parsed.backend, max(1, min(parsed.workers, len(names))))
    summary = summarise(results)
    if parsed.json:
        with open(parsed.json, "w", encoding="utf-8") as file:
            json.dump(
                {"backend": parsed.backend, **summary, "machine": machine.describe(), "results": results},
                file,
                indent=1,
            )
            file.write("\n")
    show(summary, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
