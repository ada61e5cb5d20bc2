"""Where a process runs: this machine, a device behind ssh or adb; its files, locks and power."""
