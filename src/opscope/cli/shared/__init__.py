"""What several commands share: options of a measurement, how gates end, how long work is shown."""
