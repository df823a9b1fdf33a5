# SPDX-License-Identifier: MIT
"""usage: python -m bench [--runs N] [pytest arguments]

Runs the benchmarks several times and prints each group beside its baseline. README.md tells what a
benchmark has to say about itself.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
UNITS = [(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")]


def measure(arguments: list[str]) -> tuple[list[dict[str, Any]], int]:
    """One run of pytest: pytest-benchmark's records, and the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pytest", "--benchmark-enable", "--benchmark-only"]
        command += [
            "--benchmark-quiet",
            "--benchmark-max-time=0.03",
            "--benchmark-min-rounds=3",
            f"--benchmark-json={report}",
        ]
        chosen = any(Path(argument.split("::")[0]).exists() for argument in arguments)
        command += arguments if chosen else [*arguments, str(HERE)]
        status = subprocess.run(command, cwd=HERE.parent, check=False, stdout=sys.stderr).returncode
        records = json.loads(report.read_text())["benchmarks"] if report.exists() else []
    return records, status


def is_baseline(record: dict[str, Any]) -> bool:
    return "baseline" in record["name"] or bool(record["extra_info"].get("baseline"))


def seconds(record: dict[str, Any]) -> float:
    """Median time of one operation."""
    return float(record["stats"]["median"]) / int(record["extra_info"].get("ops", 1))


def readable(time: float) -> str:
    for size, unit in UNITS:
        if abs(time) >= size or unit == "ns":
            return f"{time / size:.3g} {unit}"
    raise AssertionError


def verdict(info: dict[str, Any], ratio: float, extra: float) -> str:
    """The entry's own bounds, and whether they hold."""
    bounds = []
    if "limit_ratio" in info:
        bounds.append((f"<= {info['limit_ratio']:.2f}x", ratio <= info["limit_ratio"]))
    if "limit_extra_ns" in info:
        bound = info["limit_extra_ns"] * 1e-9
        bounds.append((f"<= +{readable(bound)} ({readable(extra)})", extra <= bound))
    return ", ".join(text + ("" if holds else "  MISSED") for text, holds in bounds)


def table(runs: list[list[dict[str, Any]]]) -> list[tuple[str, ...]]:
    """Rows of (entry, time of one operation, ratio to the baseline, bound), a group at a time.

    Ratios are taken within each run, where both sides met the same machine, and then their median.
    """
    groups: dict[str, dict[str, list[tuple[dict[str, Any], float, float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for records in runs:
        bases = {record["group"]: seconds(record) for record in records if is_baseline(record)}
        for record in records:
            group, time = record["group"] or record["name"], seconds(record)
            base = bases.get(record["group"], time)
            entry = (record["extra_info"], time, time / base, time - base)
            groups[group][record["name"]].append(entry)
    rows: list[tuple[str, ...]] = []
    for group, entries in groups.items():
        rows.append((group, "", "", ""))
        for name, results in entries.items():
            info = results[0][0]
            time, ratio, extra = (median(result[i] for result in results) for i in (1, 2, 3))
            label = "  " + str(info.get("label", name.removeprefix("test_")))
            rows.append((label, readable(time), f"{ratio:.2f}x", verdict(info, ratio, extra)))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="medians of this many runs (5)")
    options, arguments = parser.parse_known_args()
    runs, status = [], 0
    for _ in range(options.runs):
        records, failed = measure(arguments)
        runs.append(records)
        status = status or failed
    rows = table(runs)
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
    for row in rows:
        label, time, ratio, bound = row
        line = f"{label:<{widths[0]}}  {time:>{widths[1]}}  {ratio:>{widths[2]}}  {bound}"
        print(line.rstrip())
    return status


if __name__ == "__main__":
    sys.exit(main())
