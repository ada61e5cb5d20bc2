"""Many runs: store, history, fleet report."""
