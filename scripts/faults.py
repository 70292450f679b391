#!/usr/bin/env python3
"""Runs the tests of the fault table again and again; see scripts/faults.

A test belongs to the row that its name begins with, f13_... and f13b_... to F13. Rows, with
what is injected and what must happen, are in faults_rows.txt; what was seen is
what the tests themselves have measured (tests/support/src/seen.rs). Tests run one
at a time: their bounds are times."""

import collections
import datetime
import hashlib
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PAGE = pathlib.Path("docs/evidence/faults.md")
PASSED = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", "target")) / "faults"
# As scripts/test builds them.
BOTH = ["--package", "leasehold", "--package", "leasehold-cli", "--features", "tls-rustls,serde,metrics,testing"]
NAME = re.compile(r"(?:\w+::)*f(\d+)[a-d]?_\w+")
# So often where a run takes less than the first figure, in seconds.
REPEAT = [(1, 20), (2, 10), (5, 5), (15, 3), (math.inf, 1)]
# How long the outage of F90 lasts, in seconds; its test reads this.
OUTAGE = int(os.environ.setdefault("LEASEHOLD_OUTAGE", "600"))
# Longer than any run takes on a machine that is not stuck.
LIMIT = 300 + OUTAGE


def rows():
    lines = pathlib.Path("scripts/faults_rows.txt").read_text().splitlines()
    return {row: (injected, must) for row, injected, must in (map(str.strip, line.split(" | ")) for line in lines)}


def programs():
    """The test programs, built; every one that has a test of a row."""
    build = ["cargo", "test", "--locked", *BOTH, "--tests", "--no-run", "--message-format=json"]
    messages = subprocess.run(build, check=True, stdout=subprocess.PIPE, text=True).stdout
    for message in map(json.loads, messages.splitlines()):
        if message["reason"] == "compiler-artifact" and message["executable"] and "test" in message["target"]["kind"]:
            yield message["target"]["name"], message["executable"]


def tests():
    """Row -> its tests, as (program's name, program, test's name)."""
    found = collections.defaultdict(list)
    for name, program in programs():
        listed = subprocess.run([program, "--list", "--format=terse"], check=True, stdout=subprocess.PIPE, text=True)
        for line in listed.stdout.splitlines():
            test = line.removesuffix(": test")
            if match := NAME.fullmatch(test):
                found[f"F{match[1]}"].append((name, program, test))
    return found


def run(program, test, figures):
    """Runs a test once. Its seconds; ends everything with its output if it fails."""
    started = time.monotonic()
    process = subprocess.Popen(
        [program, "--exact", test, "--nocapture"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"LEASEHOLD_FAULTS_SEEN": str(figures)},
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=LIMIT)
    except BaseException as error:
        # With what it has started, which is in its group.
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        output += f"\nnot done after {LIMIT} s"
    if process.returncode != 0 or "1 passed" not in output:
        # A failure counts whatever is run next: nothing that was seen before it is believed.
        shutil.rmtree(PASSED, ignore_errors=True)
        sys.exit(f"{output}\n{test} failed; {PAGE} is as it was")
    return time.monotonic() - started


def repeat(program, test, figures):
    """Runs a test as often as it is worth. How often, and what it has seen. Where all rows are run, what this very program
    has passed with this server, in a run that was interrupted, is not run again."""
    if not is_whole():
        return run_often(program, test, figures)
    digest = hashlib.sha256()
    for file in [program, shutil.which(server()) or server()]:
        digest.update(pathlib.Path(file).read_bytes())
    passed = PASSED / f"{digest.hexdigest()[:16]}-{test}.json"
    if passed.exists():
        return json.loads(passed.read_text())
    result = run_often(program, test, figures)
    PASSED.mkdir(parents=True, exist_ok=True)
    passed.write_text(json.dumps(result))
    return result


def is_whole():
    return len(sys.argv) == 1 and "FAULTS_REPEAT" not in os.environ


def server():
    return os.environ.get("LEASEHOLD_TEST_SERVER") or "redis-server"


def run_often(program, test, figures):
    fixed = os.environ.get("FAULTS_REPEAT")
    first = run(program, test, figures)
    times = int(fixed) if fixed else next(times for under, times in REPEAT if first < under)
    for _ in range(times - 1):
        run(program, test, figures)
    seen = [json.loads(line) for line in figures.read_text().splitlines()] if figures.exists() else []
    figures.unlink(missing_ok=True)
    return times, seen


def milliseconds(value):
    if value >= 10_000:
        return f"{value / 1000:.1f} s"
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


def worst(what, figures):
    """The worst of a row's figures of one kind."""
    if "ms" in figures[0]:
        # Of different bounds, what came nearest to its own.
        most = max(figures, key=lambda figure: figure["ms"] - figure["bound"])
        late = f", the control timer {milliseconds(most['late'])} late" if most["ms"] > most["bound"] else ""
        return f"{what}: {milliseconds(most['ms'])} of {milliseconds(most['bound'])}{late}"
    numbers = [figure["number"] for figure in figures]
    if "at_most" in figures[0]:
        most = max(figures, key=lambda figure: figure["number"] - figure["at_most"])
        return f"{what}: {most['number']} of at most {most['at_most']}"
    if "at_least" in figures[0]:
        least = min(figures, key=lambda figure: figure["number"] - figure["at_least"])
        return f"{what}: {least['number']} of at least {least['at_least']}"
    return f"{what}: {min(numbers)} to {max(numbers)}" if min(numbers) < max(numbers) else f"{what}: {numbers[0]}"


def line(row, injected, must, runs, seen):
    kinds = collections.defaultdict(list)
    for figure in seen:
        kinds[figure["what"]].append(figure)
    figures = "; ".join(worst(what, figures) for what, figures in kinds.items()) or "just that"
    counted = ", ".join(f"{count} × {times}" for times, count in sorted(collections.Counter(runs).items(), reverse=True))
    return f"| {row} | {injected} | {must} | {counted} | {figures} |"


def said(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def machine():
    """What leaves the figures comparable, and the machine anonymous."""
    version = re.search(r"(\w+) server v=([\d.]+)", said(server(), "--version"), re.IGNORECASE)
    return (
        f"{version[1]} {version[2]}, {' '.join(said('rustc', '--version').split()[:2])}, "
        f"{os.cpu_count()} shared cores, servers and tests on the same ones, over 127.0.0.1, "
        f"{datetime.date.today().isoformat()}"
    )


HEADER = """# Faults, and what was seen

Generated by `scripts/faults`; not edited by hand. Each line is a row of the fault table: a fault that was injected for
real, against servers that the tests start themselves, and what must happen then. All of it did happen, in every run.

{machine}.

*Runs* is how many tests the row has and how often each ran: 20 times where a run takes less than 1 s, 10 times up to
2 s, 5 up to 5 s, 3 up to 15 s, else once. *Worst seen* is what the tests themselves measured, the worst of all runs, and
what it may be. A bound in wall-clock time allows for what a control timer on a thread of its own was late in the same
run; where that was needed, the line says so. Deadlines are reckoned from outside, from when a proxy saw the request, so
that 0.0 ms after one is before it. The tests are those in `tests/` whose names begin with the row's number.

| row | injected | must happen | runs | worst seen |
|---|---|---|---|---|
"""


def main():
    if not re.fullmatch("[1-9][0-9]*", os.environ.get("FAULTS_REPEAT", "1")):
        sys.exit("FAULTS_REPEAT is how often each test is run: a number from 1")
    table, found = rows(), tests()
    wanted = sys.argv[1:] or list(table)
    if unknown := [row for row in [*wanted, *found] if row not in table]:
        sys.exit(f"no such row: {' '.join(unknown)}")
    if untested := [row for row in wanted if not found[row]]:
        sys.exit(f"no test: {' '.join(untested)}")
    lines, started = [], time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        for row in wanted:
            runs, seen = [], []
            for name, program, test in found[row]:
                before = time.monotonic()
                times, figures = repeat(program, test, pathlib.Path(directory, "seen"))
                runs.append(times)
                seen += figures
                print(f"{row} {name}::{test}: {times} times, {time.monotonic() - before:.1f} s", file=sys.stderr)
            lines.append(line(row, *table[row], runs, seen))
    total = time.monotonic() - started
    print(f"all passed, in {total / 60:.1f} minutes", file=sys.stderr)
    page = HEADER.format(machine=machine()) + "\n".join(lines) + "\n"
    if not is_whole():
        print(page, end="")
        return
    new = PAGE.with_suffix(".new")
    new.write_text(page)
    new.replace(PAGE)
    shutil.rmtree(PASSED, ignore_errors=True)


main()
