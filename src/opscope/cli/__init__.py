"""The command line: one module a command, thin over ``opscope.api``."""

import sys

if sys.platform == "win32":  # before anything is imported that Windows does not have: fcntl, resource
    from opscope.core.errors import MissingDependencyError

    sys.stderr.write("error: opscope runs on Linux and macOS, not on Windows itself\n")
    sys.stderr.write("hint:  use it in WSL 2 (wsl --install), as on Linux\n")
    sys.exit(MissingDependencyError.exit_code)
