"""Rules of what a delegate takes, and why it leaves an operator out."""
