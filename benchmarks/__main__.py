"""Measures the queue against a bare redis-py loop and Huey; see benchmarks/README.md."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from .environment import Environment, Options
from .processes import ROOT
from .report import as_json, machine, table

NAMES = (
    "drain", "placement", "latency", "enqueue", "pickup", "ten_ms", "async1000", "slow_in_front",
    "under_drain", "steps", "memory", "flat", "idle", "profile", "workflows", "bridge",
    "dashboard", "limits", "shards", "peers",
)  # fmt: skip


def main() -> None:
    arguments = parse()
    if arguments.name == "all":
        found = run_all(arguments)
    else:
        names = tuple(filter(None, arguments.peers.split(",")))
        options = Options(arguments.jobs, arguments.rounds, arguments.full, names, arguments.write)
        found = run(arguments.name, options)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", default="all", choices=["all", *NAMES])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to this file")
    parser.add_argument("--jobs", type=int, help="instead of each benchmark's own number")
    parser.add_argument("--rounds", type=int, help="instead of each benchmark's own number")
    parser.add_argument("--full", action="store_true", help="a million jobs where that matters")
    parser.add_argument("--peers", default="", metavar="A,B", help="peers: only these and ours")
    parser.add_argument("--write", action="store_true", help="peers: update docs/comparison.md")
    return parser.parse_args()


def run(name: str, options: Options) -> dict[str, Any]:
    """Run one benchmark in this process and print its table."""
    environment = Environment()
    try:
        here = machine(environment.redis.info("server")["redis_version"])
        module = import_module(f"benchmarks.suite.{name}")
        rows = list(module.run(environment, options))
    finally:
        environment.close()
    print(table(f"{name}: {str(module.__doc__).splitlines()[0]}", rows), end="\n\n", flush=True)
    return {"machine": here, "benchmarks": {name: as_json(rows)}}


def run_all(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run each benchmark in its own process, so that none is affected by what another leaves."""
    found: dict[str, Any] = {"machine": {}, "benchmarks": {}}
    options = ["--full"] if arguments.full else []
    for name in ("jobs", "rounds"):
        if getattr(arguments, name):
            options += [f"--{name}", str(getattr(arguments, name))]
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            if name == "peers":  # it installs other queues, so it runs only if it is named
                continue
            file = Path(folder) / f"{name}.json"
            command = [sys.executable, "-m", "benchmarks", name, "--json", str(file), *options]
            subprocess.run(command, cwd=ROOT, check=True)
            one = json.loads(file.read_text())
            found["machine"] = found["machine"] or one["machine"]
            found["benchmarks"] |= one["benchmarks"]
    return found


if __name__ == "__main__":
    main()
