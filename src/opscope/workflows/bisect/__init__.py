"""Which of several releases, options or builds made a model slower, and which operators."""
