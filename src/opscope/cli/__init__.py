"""The command line: one module a command, thin over ``opscope.api``."""
