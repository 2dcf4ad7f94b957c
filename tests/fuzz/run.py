"""Judges many random programs in child processes: python -m tests.fuzz.run --count 2000

A child that dies or hangs is a finding about the program it was working on; another goes on after
it. --only SEED shows one program and what is wrong with it, --shrink makes it small first.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.fuzz.generator import FOUND, generate
from tests.fuzz.judge import PEAK_BYTES, TOLERATED, Verdict, bytes_off, holds, moves, peak_low

BATCH = 100  # programs of one child: each imports JAX
LIMIT_S = 120.0  # of work on one program; on a busy machine that takes longer
PATIENCE = 10  # a child that waits for ever is given so many times that
HUNG = "hung"
HASHED = 50  # one program in so many is planned under two hash seeds
# Eight devices on few cores wait for each other in as many threads as the pool has. Machine code is
# compiled quickly, not well: what is judged is settled before it is made.
FLAGS = (
    "--xla_force_host_platform_device_count=8", "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true", "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)  # fmt: skip
ENVIRONMENT = {
    "XLA_FLAGS": " ".join(FLAGS), "JAX_PLATFORMS": "cpu",
    "NPROC": "16", "OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "1",
    "JAX_ENABLE_COMPILATION_CACHE": "0",
}  # fmt: skip


def run_batch(seeds: Sequence[int], report: Callable[[Verdict], None]) -> None:
    """Judges seeds in children, a new one after each that died or hung."""
    left = list(seeds)
    while left:
        left = left[_run_child(left, report) :]


def _run_child(seeds: Sequence[int], report: Callable[[Verdict], None]) -> int:
    """How many of the seeds are done with, the one that ended the child included."""
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.worker", *map(str, seeds)],
            env={**os.environ, **ENVIRONMENT}, stdout=subprocess.PIPE, stderr=said, text=True,
        )  # fmt: skip
        lines: queue.Queue[str | None] = queue.Queue()
        reader = threading.Thread(target=_read, args=(child, lines), daemon=True)
        reader.start()
        done, case = 0, {"how": FOUND}
        while True:
            line = _next_line(child, lines)
            if line == HUNG:
                child.kill()
                child.wait()
                report(
                    Verdict(
                        seeds[done],
                        case["how"],
                        [("hang", f"no answer in {LIMIT_S:.0f} s of work")],
                        case=case,
                    )
                )
                return done + 1
            if line is None:
                break
            row = json.loads(line)
            if "started" in row:
                case = row["started"]
                continue
            row["findings"] = [tuple(f) for f in row["findings"]]
            row.pop("seconds"), row.pop("case")
            report(Verdict(**row, case=case if row["findings"] else None))
            done += 1
        if done < len(seeds):
            said.seek(0)
            last = "\n".join(said.read().strip().splitlines()[-25:])
            kind = "died" if child.wait() < 0 else "worker crash"
            report(
                Verdict(
                    seeds[done],
                    case["how"],
                    [(kind, f"code {child.returncode}\n{last}")],
                    case=case,
                )
            )
            return done + 1
        child.wait()
        return done


def _next_line(
    child: subprocess.Popen[str], lines: queue.Queue[str | None], limit_s: float = LIMIT_S
) -> str | None:
    """What the child says next, None when it has ended; HUNG if that takes it too much work."""
    started = worked_s(child.pid)
    for _ in range(PATIENCE):
        try:
            return lines.get(timeout=limit_s)
        except queue.Empty:
            if worked_s(child.pid) - started > limit_s:
                break
    return HUNG


def worked_s(pid: int) -> float:
    """Seconds that a process has had a core for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return 0.0
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _read(child: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("{"):
            lines.put(line)
    lines.put(None)


def run_many(
    seeds: Sequence[int], *, jobs: int = 2, report: Callable[[Verdict], None] = lambda v: None
) -> list[Verdict]:
    """The verdicts on all seeds."""
    verdicts: list[Verdict] = []
    batches: queue.Queue[Sequence[int]] = queue.Queue()
    for at in range(0, len(seeds), BATCH):
        batches.put(seeds[at : at + BATCH])

    def note(verdict: Verdict) -> None:
        verdicts.append(verdict)
        report(verdict)

    def work() -> None:
        while True:
            try:
                run_batch(batches.get_nowait(), note)
            except queue.Empty:
                return

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(verdicts, key=lambda v: v.seed)


def other_hashes(seeds: Sequence[int]) -> list[Verdict]:
    """Verdicts on seeds whose plan depends on the order of sets: on PYTHONHASHSEED."""
    answers = []
    for hash_seed in ("1", "2"):
        child = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.worker", "--plans", *map(str, seeds)],
            env={**os.environ, **ENVIRONMENT, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        lines = [line for line in child.stdout.splitlines() if line.startswith("{")]
        answers.append({row["seed"]: row["plan"] for row in map(json.loads, lines)})
    first, second = answers
    return [
        Verdict(seed, FOUND, [("hash seed", f"{first.get(seed)}\n{second.get(seed)}")])
        for seed in seeds
        if first.get(seed) != second.get(seed) or seed not in first
    ]


def table(verdicts: Sequence[Verdict]) -> str:
    """Counts of each kind of finding, of found plans and of all."""
    found = [v for v in verdicts if v.how == FOUND]
    counts = Counter(kind for v in verdicts for kind in set(v.kinds))
    rows = [
        f"{len(verdicts)} programs, {len(found)} searched freely; {sum(v.split for v in verdicts)}"
        " plans split something"
    ]
    rows += [
        f"  {kind:18} {n:5}   seeds {' '.join(str(v.seed) for v in verdicts if kind in v.kinds)}"
        for kind, n in sorted(counts.items())
    ]
    for name, group in (("found plans", found), ("all plans", verdicts)):
        low = [v for v in group if peak_low(v)]
        peaks = ", ".join(
            f"{sum(holds(v, least) for v in low)} of {sum(holds(v, least) for v in group)} {words}"
            for least, words in ((PEAK_BYTES, ""), (16 << 10, "above 16 kB"))
        )
        rows.append(
            f"  {name}: bytes off in {sum(map(bytes_off, group))} of {sum(map(moves, group))}"
            f" above 8 kB; peak too low in {peaks}"
        )
    proofs = Counter(v.certificate for v in found)
    rows.append("  certificates: " + ", ".join(f"{k or '-'} {n}" for k, n in proofs.items()))
    return "\n".join(rows)


def faults(verdicts: Sequence[Verdict]) -> list[tuple[int, str, str]]:
    """(seed, kind, text) of the findings that must never occur."""
    return [
        (v.seed, *finding)
        for v in verdicts
        for finding in v.findings
        if finding[0] not in TOLERATED
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="the first of the seeds")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", type=int, help="one seed: print the program and its findings")
    parser.add_argument("--shrink", action="store_true", help="with --only: make it small")
    parser.add_argument("--out", help="add verdicts as JSON lines; seeds found there are not run")
    options = parser.parse_args(argv)
    if options.only is not None:
        return _one(options.only, options.shrink)
    started = time.monotonic()
    seeds = range(options.seed, options.seed + options.count)
    earlier = [v for v in _read_verdicts(options.out) if v.seed in seeds]
    left = sorted({*seeds}.difference(v.seed for v in earlier))
    out: Any = open(options.out, "a") if options.out else None  # noqa: SIM115
    seen = [0]

    def report(verdict: Verdict) -> None:
        seen[0] += 1
        if out:
            print(json.dumps(verdict.to_dict()), file=out, flush=True)
        if verdict.findings:
            print(f"seed {verdict.seed} ({verdict.how}): {', '.join(verdict.kinds)}", flush=True)
        if seen[0] % 50 == 0:
            print(f"-- {seen[0]} programs, {time.monotonic() - started:.0f} s", flush=True)

    verdicts = earlier + run_many(left, jobs=options.jobs, report=report)
    verdicts += other_hashes(seeds[::HASHED])
    print(table(verdicts))
    return 1 if faults(verdicts) else 0


def _read_verdicts(file: str | None) -> list[Verdict]:
    """The verdicts that an earlier run wrote to a file, if there is one."""
    if file is None or not Path(file).exists():
        return []
    rows = map(json.loads, Path(file).read_text().splitlines())
    return [Verdict(**{**row, "findings": [(*f,) for f in row["findings"]]}) for row in rows]


def _one(seed: int, shrink: bool) -> int:
    print(generate(seed))
    if shrink:
        command = [sys.executable, "-m", "tests.fuzz.shrink", str(seed)]
        return subprocess.run(command, env={**os.environ, **ENVIRONMENT}).returncode
    verdicts = run_many([seed], jobs=1)
    for kind, text in verdicts[0].findings:
        print(f"{kind}: {text}")
    print(table(verdicts))
    return 1 if faults(verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
