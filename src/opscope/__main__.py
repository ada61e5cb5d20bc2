"""``python -m opscope`` is the ``opscope`` command.

Python puts the current directory first on the path for ``-m``, and has looked there itself when this runs; from here on
nothing of ours does.
"""

import sys

if __name__ == "__main__" and not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
    del sys.path[0]

from opscope.cli.main import main

if __name__ == "__main__":
    main()
