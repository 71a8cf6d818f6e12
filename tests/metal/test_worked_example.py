"""The example of the guide does what the guide shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_worked_example_runs_compares_times_and_checks():
    script = ROOT / "examples" / "metal" / "anywhere.py"
    done = subprocess.run([sys.executable, str(script), "cpu"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    error, time, clean, broken, *_ = done.stdout.splitlines()
    assert float(error.split()[2]) < 1e-5
    assert time.startswith("time") and time.endswith("on cpu")
    assert clean.split() == ["checks", "clean"]
    assert broken.startswith("without the barrier <metal>:26: kernel 'rms_norm': ")
    assert "race on threadgroup variable 'sums'" in done.stdout
