"""Run workers through a plan of faults, and check in a ledger whether every promise was kept.

Exit code 0: every promise was kept; 1: one was broken; 3: a fault never fired, so the run says
nothing.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import django

from tests.support import postgres

from . import clock
from .deployment import Deployment, Place
from .faults import UnknownFault, choose


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make gauntlet ARGS=...",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="at least a whole round")
    parser.add_argument("--rounds", type=int, help="of all faults, in place of --minutes")
    parser.add_argument("--seed", type=int, help="the same seed gives the same plan")
    parser.add_argument("--on", choices=["redis", "sentinel", "cluster"], default="redis")
    parser.add_argument(
        "--database", choices=["postgresql", "sqlite"],
        help="default: postgresql if its programs are there",
    )  # fmt: skip
    parser.add_argument(
        "--shards", type=int, default=1, help="of the queue, which spreads its jobs"
    )
    parser.add_argument(
        "--servers", type=int, default=1, help="that have the shards in turn, on redis"
    )
    parser.add_argument("--lease", type=float, default=6.0, help="seconds")
    parser.add_argument("--faults", default="", help="only these, with commas between them")
    parser.add_argument(
        "--side-by-side", action="store_true",
        help="faults of children, workers, servers, network and database at the same time",
    )  # fmt: skip
    parser.add_argument(
        "--clock-jumps", action="store_true",
        help="the clocks of servers, workers and producers jump, too",
    )  # fmt: skip
    parser.add_argument(
        "--no-memory", dest="memory", action="store_false",
        help="do not ask whether memory is given back, which takes a quarter of a minute",
    )  # fmt: skip
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave ledger and logs there")
    return parser


def main() -> int:
    parser = make_parser()
    options = parser.parse_args()
    if options.servers > 1 and (options.on != "redis" or options.clock_jumps):
        parser.error("several --servers need --on redis, and clocks that do not jump")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # and its processes with it
    seed = random.randrange(10**6) if options.seed is None else options.seed
    database = options.database or ("sqlite" if postgres.missing() else "postgresql")
    problem = clock.missing() if options.clock_jumps else ""
    if problem:
        print(f"no clock jumps: {problem}", flush=True)
    jumps = options.clock_jumps and not problem
    place = Place(options.on, database, options.lease, options.shards, jumps, options.servers)
    try:
        chosen = choose(place, options.faults)
    except UnknownFault as error:
        parser.error(str(error))
    folder = Path(tempfile.mkdtemp(prefix="gauntlet-"))
    try:
        with Deployment(folder, place, seed) as deployment:
            os.environ.update(deployment.variables, DJANGO_SETTINGS_MODULE="tests.settings")
            django.setup()
            return drive(deployment, chosen, options)
    finally:
        if options.keep:
            shutil.copytree(folder, options.keep, dirs_exist_ok=True)
        shutil.rmtree(folder)


def drive(deployment: Deployment, chosen: list[str], options: argparse.Namespace) -> int:
    # These need Django to be set up.
    from . import report
    from .evidence import collect
    from .fault_runner import Length
    from .ledger import read_file
    from .run import Gauntlet, delete_finished
    from .verdict import check_promises, never_accepted, promises_of

    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun:7.1f} s  {text}", flush=True)

    place = deployment.place
    say(
        f"on {place.on} and {place.database}, shards {place.shards}, servers {place.servers}, "
        f"lease {place.lease:g} s, seed {deployment.seed}"
        + (", side by side" if options.side_by_side else "")
    )
    length = Length(0 if options.rounds else options.minutes * 60, options.rounds or 1)
    result = Gauntlet(deployment, chosen, say).run(length, side_by_side=options.side_by_side)
    say("reading what is left")
    reading = {"decode_responses": True, "socket_timeout": 60}
    servers = [server.client(**reading) for server in deployment.servers]
    found = collect(read_file(deployment.ledger), servers, place.keys)
    if options.memory and not result.problem:
        found.left = delete_finished(deployment, servers)
    asked = promises_of(place.on, memory=options.memory, clock_jumps=place.clock_jumps)
    checked = check_promises(found, asked)
    missing = [*result.missing(chosen), *never_accepted(found)]
    for part in (
        report.table(result, chosen, found.ledger),
        report.load(found),
        report.promises(checked),
        report.summary(result, checked, missing, deployment.seed),
    ):
        print("", *part, sep="\n")
    return report.exit_code(result, checked, missing)


if __name__ == "__main__":
    sys.exit(main())
