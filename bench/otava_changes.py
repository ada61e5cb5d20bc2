"""Change points that Apache Otava finds in series of `bench/history.py`, in an environment of its own.

Called by `bench/history.py` with the Python of an environment where `apache-otava` is installed. Reads a .npz of
arrays, one series a row, and prints a line for each: its name and the share of rows with a change point, by the
settings that Otava has when nothing is said.
"""

import sys

import numpy as np
from otava.analysis import compute_change_points
from otava.series import AnalysisOptions


def main(path: str) -> None:
    """Print the shares."""
    said = AnalysisOptions()
    settings = {
        "window_len": said.window_len,
        "max_pvalue": said.max_pvalue,
        "min_magnitude": said.min_magnitude,
    }
    with np.load(path) as file:
        for name in file.files:
            found = sum(bool(compute_change_points(row.tolist(), **settings)[0]) for row in file[name])
            print(f"{name}\t{found / len(file[name])}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
