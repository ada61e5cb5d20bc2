"""Stores of a fleet, night by night: rows of `runs` and `operators` written as `opscope store add` writes them.

Bundles that were profiled take milliseconds each; a gate over a fleet wants thousands of them.
"""

from __future__ import annotations

import hashlib
import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from opscope.fleet.store.place import find_place
from opscope.fleet.store.schema import TABLES, StoreEntry, entries_frame
from opscope.fleet.store.table import append_rows, change_store, create_store, merge_small_files

if TYPE_CHECKING:
    from numpy.typing import NDArray

BEGINNING = datetime(2026, 1, 1, 2, tzinfo=timezone.utc)
_PARTS = (("Convolution #1", "Convolution", 0.6), ("Fully Connected #2", "GEMM", 0.3), ("Add #3", "Elementwise", 0.1))


class Nights(NamedTuple):
    """A fleet in some nights.

    Attributes:
        latency: ns; shape (models, devices, nights); nan where nothing ran.
        system: of each device in each night; shape (devices, nights).
        program: hash of each model's program in each night; shape (models, nights).
        executorch: version in each night; shape (nights).
        first: number of the first night, from 0.
        parts: share of each operator's time; shape (models, devices, nights, 3); None: 60, 30 and 10 %.
        grade: of each run; shape (models, devices, nights); None: good.
    """

    latency: NDArray[np.float64]
    system: NDArray[np.str_]
    program: NDArray[np.str_]
    executorch: NDArray[np.str_]
    first: int = 0
    parts: NDArray[np.float64] | None = None
    grade: NDArray[np.str_] | None = None


def steady(models: int, devices: int, nights: int, *, scatter: float = 0.01, seed: int = 0) -> Nights:
    """A fleet in which nothing changes but noise."""
    generator = np.random.default_rng(seed)
    level = 1e6 * 1.3 ** np.arange(models)[:, None, None] * 1.1 ** np.arange(devices)[None, :, None]
    latency = level * np.exp(generator.normal(0, scatter, (models, devices, nights)))
    return Nights(
        latency,
        np.full((devices, nights), "Android 14", dtype="<U40"),
        np.array([[hashlib.sha256(f"{m}".encode()).hexdigest()] * nights for m in range(models)], dtype="<U64"),
        np.full(nights, "1.5.1", dtype="<U40"),
    )


def write_nights(store: Path, nights: Nights) -> Path:
    """Add a fleet's nights to a store, each night as one addition."""
    place = find_place(store)
    create_store(place)
    for night in range(nights.latency.shape[2]):
        at = BEGINNING + timedelta(days=nights.first + night)
        entries, runs, operators = [], [], []
        for (model, device), latency in np.ndenumerate(nights.latency[:, :, night]):
            if not np.isnan(latency):
                entry = _entry(model, device, at)
                entries.append(entry)
                runs.append(_run(entry, nights, (model, device, night), float(latency)))
                shares = [part[2] for part in _PARTS]
                if nights.parts is not None:
                    shares = nights.parts[model, device, night].tolist()
                operators += [_operator(entry, number, float(latency) * s) for number, s in enumerate(shares)]
        frames = {"runs": _frame("runs", runs), "operators": _frame("operators", operators)}
        frames["bundles"] = entries_frame(entries)
        change_store(place, lambda snapshot, frames=frames: append_rows(snapshot, frames))
        change_store(place, merge_small_files)
    return store


def _entry(model: int, device: int, at: datetime) -> StoreEntry:
    name = hashlib.sha256(f"{model} {device} {at}".encode()).hexdigest()
    moment = at.isoformat()
    return StoreEntry(
        name, name, 5, f"model-{model}", f"phone {device}", ("accelerated",), moment, moment, "/runs", placed=moment
    )


def _run(entry: StoreEntry, nights: Nights, at: tuple[int, int, int], latency: float) -> dict[str, Any]:
    model, device, night = at
    return {
        "bundle": entry.bundle,
        "model": entry.model,
        "device": entry.device,
        "variant": "accelerated",
        "kind": "bundle",
        "created": datetime.fromisoformat(entry.created).replace(tzinfo=None),
        "placed": datetime.fromisoformat(entry.created).replace(tzinfo=None),
        "opscope": "1.0",
        "versions": json.dumps({"executorch": str(nights.executorch[night])}),
        "role": "accelerated",
        "dtype": "fp32",
        "threads": 1,
        "affinity": "",
        "target": "adb",
        "cpu": "Cortex",
        "system": str(nights.system[device, night]),
        "machine": "aarch64",
        "program_sha256": str(nights.program[model, night]),
        "status": "complete",
        "arm": "untraced",
        "latency_ns": latency,
        "latency_grade": "good" if nights.grade is None else str(nights.grade[at]),
    }


def _operator(entry: StoreEntry, number: int, time_ns: float) -> dict[str, Any]:
    name, category, _ = _PARTS[number]
    return {
        "bundle": entry.bundle,
        "model": entry.model,
        "device": entry.device,
        "variant": "accelerated",
        "method": "forward",
        "instruction": number,
        "position": 0,
        "name": name,
        "category": category,
        "kind": "x",
        "backend": "XNNPACK",
        "calls": 1.0,
        "time_ns": time_ns,
    }


def _frame(table: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    schema = TABLES[table].polars
    return pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=schema)
