"""One question, one function, one frozen result. Tables and numbers in, results out; no files, no processes."""
