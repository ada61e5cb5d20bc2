"""Nights of a fleet as the rows of a store, written by its own writer: realistic latencies without a single run.

`nightly_fleet.py STORE [MODELS DEVICES NIGHTS]` makes one to look at. Latencies are a model's size, a device's speed,
how well the two fit, the scatter of the series, and what happened: a device that got slower, a model that got slower on
some devices, single pairs, levels that changed some nights ago, drifts, a device that has been away, pairs that never
ran.
"""

from __future__ import annotations

import hashlib
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from opscope.fleet.store.place import find_place
from opscope.fleet.store.schema import TABLES, StoreEntry, entries_frame
from opscope.fleet.store.table import append_rows, change_store, create_store, merge_small_files

FIRST_NIGHT = datetime(2026, 1, 1, 2, tzinfo=timezone.utc)
_FAMILIES = ("mobilenet_v3", "resnet", "vit", "yolo", "whisper_tiny", "bert_base", "llama_block", "squeezesam")
_CHIPS = ("Pixel 8", "Galaxy S24", "Xperia 5", "RK3588 board", "Raspberry Pi 5", "M2 mini", "Graviton 4", "i.MX 95")
_SORTS = (("Convolution", "Convolution"), ("Fully Connected", "GEMM"), ("Transpose", "Data Movement"))


class NightlyFleet(NamedTuple):
    """Latencies in ns of every model on every device in every night; not a number where a pair did not run.

    Attributes:
        models: names.
        devices: names.
        accelerated: of shape (models, devices, nights).
        baseline: likewise.
    """

    models: list[str]
    devices: list[str]
    accelerated: np.ndarray
    baseline: np.ndarray


def steady_fleet(models: int, devices: int, nights: int, seed: int = 0) -> NightlyFleet:
    """A fleet in which nothing happens but scatter of 0.4 to 2.5 %."""
    generator = np.random.default_rng(seed)
    sizes = generator.lognormal(np.log(8e6), 1.2, (models, 1, 1))
    speeds = generator.uniform(1, 6, (1, devices, 1))
    fits = generator.lognormal(0, 0.15, (models, devices, 1))
    scatter = generator.uniform(0.004, 0.025, (models, devices, 1))
    levels = sizes * speeds * fits * np.ones((1, 1, nights))
    speedups = generator.lognormal(np.log(1.8), 0.3, (models, devices, 1))
    noise = [np.exp(scatter * generator.standard_normal(levels.shape)) for _ in range(2)]
    names = [f"{_FAMILIES[number % len(_FAMILIES)]}_{number // len(_FAMILIES)}" for number in range(models)]
    boards = [f"{_CHIPS[number % len(_CHIPS)]} #{number // len(_CHIPS) + 1}" for number in range(devices)]
    return NightlyFleet(names, boards, levels * noise[0], levels * speedups * noise[1])


def eventful_fleet(models: int, devices: int, nights: int, seed: int = 0) -> NightlyFleet:
    """A fleet in which all sorts of things happen; of at least 40 models, 10 devices and 20 nights."""
    fleet = steady_fleet(models, devices, nights, seed)
    generator = np.random.default_rng(seed + 1)
    latencies = fleet.accelerated
    latencies[:, devices // 5, -1] *= 1.12
    latencies[models // 7, : devices // 2, -1] *= 1.3
    latencies[:, devices // 3, -9:] *= 0.9
    for _ in range(models // 10):
        at = generator.integers(models), generator.integers(devices)
        latencies[at][-1:] *= generator.uniform(1.08, 1.9)
        at = generator.integers(models), generator.integers(devices)
        latencies[at][-int(generator.integers(3, 15)) :] *= generator.uniform(0.7, 1.5)
        at = generator.integers(models), generator.integers(devices)
        latencies[at][:] *= np.linspace(1, generator.uniform(1.1, 1.3), nights)
        at = generator.integers(models), generator.integers(devices)
        latencies[at][:] *= generator.uniform(3, 9)
    latencies[:, devices - 2, -5:] = np.nan
    latencies[generator.random((models, devices)) < 0.06] = np.nan
    latencies[models - 3, :, : nights - 4] = np.nan
    latencies[models - 2, :, : nights - 1] = np.nan
    return fleet


def store_nights(store: Path, fleet: NightlyFleet) -> None:
    """Write a fleet to a store, a commit a night."""
    place = find_place(store)
    create_store(place)
    nights = fleet.accelerated.shape[2]
    for night in range(nights):
        entries, runs = _night(fleet, night)
        frames = {"runs": runs} | ({"kernels": _kernels(runs)} if night == nights - 1 else {})
        frames["bundles"] = entries_frame(entries)
        change_store(place, lambda snapshot, frames=frames: append_rows(snapshot, frames))
        change_store(place, merge_small_files)


def _night(fleet: NightlyFleet, night: int) -> tuple[list[StoreEntry], pl.DataFrame]:
    begun = FIRST_NIGHT + timedelta(days=night)
    entries, rows = [], []
    for model, device in zip(*np.nonzero(~np.isnan(fleet.accelerated[:, :, night])), strict=True):
        name = hashlib.sha256(f"{model} {device} {night}".encode()).hexdigest()
        created = begun + timedelta(seconds=int(model))
        names = fleet.models[model], fleet.devices[device]
        place = (begun + timedelta(hours=3)).isoformat()
        variants = ("accelerated", "baseline")
        entries.append(StoreEntry(name, name, 10, *names, variants, created.isoformat(), place, "/runs", placed=place))
        fast, slow = (float(one[model, device, night]) for one in (fleet.accelerated, fleet.baseline))
        common = {"bundle": name, "model": names[0], "device": names[1], "created": created.replace(tzinfo=None)}
        common["placed"] = common["created"]
        ratio = slow / fast
        judged = {
            "speedup": ratio,
            "speedup_low": ratio * 0.97,
            "speedup_high": ratio * 1.03,
            "verdict": "faster" if ratio > 1.03 else "slower" if ratio < 0.97 else "no_difference",
        }
        rows.append(common | {"variant": "accelerated", "role": "accelerated", "latency_ns": fast} | judged)
        rows.append(common | {"variant": "baseline", "role": "baseline", "latency_ns": slow})
    return entries, _runs(rows)


def _runs(rows: list[dict[str, object]]) -> pl.DataFrame:
    said = pl.DataFrame(rows, infer_schema_length=None) if rows else pl.DataFrame(schema=TABLES["runs"].polars)
    usual = {
        "kind": "bundle",
        "dtype": "fp32",
        "threads": 4,
        "affinity": "",
        "ablated": "",
        "target": "local",
        "status": "complete",
        "processes": 5,
        "failed": 0,
        "arm": "untraced",
        "grade": "good",
        "versions": '{"executorch": "1.5.1"}',
    }
    columns = [
        (pl.col(name) if name in said.columns else pl.lit(usual.get(name))).cast(kind).alias(name)
        for name, kind in TABLES["runs"].polars.items()
    ]
    return said.select(columns)


def _kernels(runs: pl.DataFrame) -> pl.DataFrame:
    sorts = pl.DataFrame(
        {
            "operator": [name for name, _ in _SORTS],
            "category": [category for _, category in _SORTS],
            "backend": ["XNNPACK"] * len(_SORTS),
            "share": [0.6, 0.25, 0.05],
        }
    )
    made = runs.select("bundle", "model", "device", "variant", "latency_ns").join(sorts, how="cross")
    made = made.with_columns((pl.col("share") * pl.col("latency_ns")).alias("time_ns"))
    return made.select(
        (pl.col(name) if name in made.columns else pl.lit(None)).cast(kind).alias(name)
        for name, kind in TABLES["kernels"].polars.items()
    )


if __name__ == "__main__":
    counts = [int(word) for word in sys.argv[2:]] or [300, 40, 30]
    store_nights(Path(sys.argv[1]), eventful_fleet(*counts))
