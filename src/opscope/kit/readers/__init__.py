"""The files of a run directory of the Arm kit."""
