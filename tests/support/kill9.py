"""Kill a run with SIGKILL at random moments, resume it, and compare with a run that nobody killed.

    python tests/support/kill9.py [times]

Every time: `fedfuse run`, killed; `fedfuse resume`, killed again, once to four times; then resumed to the
end. Labels and models must equal the uninterrupted run's to the bit, and nothing half-written may be left.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FEDFUSE = [sys.executable, "-m", "fedfuse"]
RUN = ["run", "synthetic:S3", "--lam", "0.6", "--rounds", "60", "--set", "checkpoint_every=5", "--json"]
COMPARED = ("models.npz", "labels.csv", "coefficients.csv")


def command(directory):
    """Go on where there is something to go on with; a run killed before it began is begun again."""
    words = ["resume", directory, "--json"] if (directory / "config.json").exists() else [*RUN, "--out", directory]
    return [*FEDFUSE, *map(str, words)]


def run_to_the_end(directory):
    subprocess.run(command(directory), check=True, stdout=subprocess.DEVNULL)


def kill_after(seconds, directory):
    """Start, wait, kill; returns whether there was still something to kill."""
    with subprocess.Popen(command(directory), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        try:
            running.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGKILL)
            return True
    return False


def same(directory, whole):
    equal = all((directory / name).read_bytes() == (whole / name).read_bytes() for name in COMPARED)
    return equal and {p.name for p in directory.iterdir()} == {p.name for p in whole.iterdir()}


def kill_often(directory, rng, long):
    """Kill a run and its resumptions once to four times within its usual time; return the moments."""
    moments = []
    while not moments:  # a run that ended before its moment came does not count
        shutil.rmtree(directory, ignore_errors=True)
        for _ in range(rng.randint(1, 4)):
            moment = rng.uniform(0.0, long)
            if not (directory / "summary.json").exists() and kill_after(moment, directory):
                moments.append(f"{moment:.1f}")
    return moments


def kill_and_compare(times, folder, seed=0, say=lambda text: None):
    """Return how many of the killed and resumed runs equal the uninterrupted one, and the number of kills."""
    rng, whole = random.Random(seed), Path(folder) / "whole"
    clock = time.perf_counter()
    run_to_the_end(whole)
    long = time.perf_counter() - clock
    good = kills = 0
    for number in range(times):
        directory = Path(folder) / f"killed-{number}"
        moments = kill_often(directory, rng, long)
        run_to_the_end(directory)
        equal = same(directory, whole)
        good, kills = good + equal, kills + len(moments)
        say(f"{number + 1:3d}: killed after {', '.join(moments)} s: {'equal' if equal else 'DIFFERENT'}")
    return good, kills


if __name__ == "__main__":
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory() as scratch:
        good_runs, all_kills = kill_and_compare(repetitions, scratch, say=print)
    print(f"{good_runs} of {repetitions} runs equal the uninterrupted one to the bit, after {all_kills} kills")
    sys.exit(good_runs != repetitions)
