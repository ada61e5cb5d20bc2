"""Measure what opscope claims of itself: ``python -m bench [NAME...] [--full]``, behind ``make bench``.

Every figure is measured in this run, beside what it is compared with. Each benchmark is a module with ``run``, which
prints its figures and returns whether the claim holds. The exit code is 1 where one does not.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib import import_module

USUAL = {
    "startup": "how long commands take before they do anything",
    "overhead": "what a measuring process costs beside the inferences",
    "answer": "how long a user waits for the report of a small model",
    "decode": "reading an ETDump, beside ExecuTorch's Inspector",
    "report": "size of a large HTML report, and how soon a browser shows it",
    "aie": "reading AI Engine traces, beside json.load",
    "check": "how often `opscope check` is wrong, on equal and on slower programs",
    "store": "time, memory and bytes of a store, and what Dask workers add",
    "history": "how often a history tells of a change that is none, and which changes it finds",
    "calibration": "how often verdicts are wrong, and what they can see",
}
NAMED = {
    "attribution": "attribution of XNNPACK's events against the truth, on models of every kind (20 minutes)",
    "truth": "predicted savings, counts and scaled times against what is measured another way (10 minutes)",
    "tuning": "choices of `opscope tune` against new runs, planted gains, equal candidates (8 minutes, quiet machine)",
    "recipes": "what the recipes gain, written into pages that have no figures; with --full into all",
}
"""Benchmarks that run only when they are named: they take long, or write pages."""


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen benchmarks one after the other; return 1 where a claim does not hold."""
    descriptions = USUAL | NAMED
    listed = "\n".join(f"  {name:12} {text}" for name, text in descriptions.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure what opscope claims of itself.",
        epilog=f"benchmarks; without a name, all but {', '.join(NAMED)}:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run")
    parser.add_argument("--full", action="store_true", help="the long form, with the figures that the pages show")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in descriptions]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are: {', '.join(descriptions)}")
    if len(options.names) == 1:
        return int(not import_module(f"bench.{options.names[0]}").run(full=options.full))
    failed = []
    for name in options.names or USUAL:
        print(f"\n# {name}: {descriptions[name]}\n", flush=True)
        # A process each: what one has loaded or set must not count for the next.
        command = [sys.executable, "-m", "bench", name, *["--full"] * options.full]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    print(f"\nnot as claimed: {', '.join(failed)}" if failed else "\nall as claimed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
