"""Hosts that a process runs on: this machine, a device behind ssh or adb; its files, locks and power."""
