"""Running models: targets, variants by feature masks, schedules, and the state of the machine."""
