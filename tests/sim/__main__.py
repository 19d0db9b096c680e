"""`python -m sim --seeds 500`, `python -m sim --seed 17`: worlds by the number, or one of them told in full.

Exit code 1 at the first seed that breaks an invariant: what, when, the end of its trace, how to see it again.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from sim.campaign import FAULTS_S, Verdict, run_seed

TRACE_LINES = 50


def told(verdict: Verdict, kind_of_world: str = "") -> str:
    """A failure, for a person. `kind_of_world`: the options without which this seed is another world."""
    cause = verdict.failure.__cause__ if verdict.failure is not None else None
    lines = [
        *verdict.trace[-TRACE_LINES:],
        *(traceback.format_exception(cause) if cause is not None else ()),
        f"seed {verdict.seed} failed at {verdict.virtual_s:.3f} virtual seconds: {verdict.failure}",
        f"again: make sim SEED={verdict.seed}" + (f' SIM="{kind_of_world}"' if kind_of_world else ""),
    ]
    return "\n".join(lines)


def verdicts(run: Callable[[int], Verdict], seeds: Sequence[int], processes: int) -> Iterator[Verdict]:
    """In the order of the seeds, whoever runs them."""
    if processes < 2 or len(seeds) < 2:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for verdict in pool.map(run, seeds, chunksize=4):
            if verdict.failure is not None:
                pool.shutdown(wait=False, cancel_futures=True)
                verdict = run(verdict.seed)  # Once more here: a cause does not travel.
            yield verdict


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many worlds")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seed", type=int, help="only this one, with the end of its trace")
    parser.add_argument("--faults-s", type=float, default=FAULTS_S, help="virtual seconds of faults")
    parser.add_argument("--nemesis", help="only this one of nemeses.py, again and again")
    parser.add_argument("--processes", type=int, default=1, help="run so many worlds side by side")
    parser.add_argument("--digest", action="store_true", help="print the trace's digest of each seed")
    parser.add_argument("--transactions", action="store_true", help="worlds with transactional clients")
    parser.add_argument("--groups", action="store_true", help="worlds with members of consumer groups")
    options = parser.parse_args(arguments)
    one = options.seed is not None
    seeds = [options.seed] if one else range(options.first, options.first + options.seeds)
    began, virtual_s, faults = time.monotonic(), 0.0, Counter[str]()
    written = epochs = committed = polled = commits = 0
    run = partial(
        run_seed,
        faults_s=options.faults_s,
        nemesis=options.nemesis,
        is_transactional=options.transactions,
        has_groups=options.groups,
    )
    for verdict in verdicts(run, seeds, options.processes):
        if verdict.failure is not None:
            nemesis = f" --nemesis '{options.nemesis}'" if options.nemesis else ""
            kinds = " --transactions" * options.transactions + " --groups" * options.groups
            print(told(verdict, f"--faults-s {options.faults_s:g}{nemesis}{kinds}"))
            return 1
        if options.digest:
            print(verdict.seed, verdict.digest)
        elif one:
            print("\n".join(verdict.trace))
        virtual_s += verdict.virtual_s
        written, epochs = written + verdict.acknowledged, epochs + verdict.epochs
        committed += verdict.transactions
        polled, commits = polled + verdict.polled, commits + verdict.commits
        faults.update(verdict.faults)
    if not options.digest:
        kinds = ", ".join(f"{count} {name}" for name, count in sorted(faults.items()))
        took_s = time.monotonic() - began
        print(
            f"{len(seeds)} worlds, {virtual_s:.0f} virtual seconds in {took_s:.0f}: no invariant was broken"
        )
        print(
            f"{written} records acknowledged with acks=all, {committed} transactions committed, "
            f"{polled} records polled by groups that committed {commits} offsets, {epochs} leaderships; faults: {kinds}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
