"""Which of several releases or builds made a model slower, and which operators."""
