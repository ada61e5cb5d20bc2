"""Starts a module in a Python process of its own that does not look for modules in the current directory.

``python -m`` and ``python -c`` put the current directory first on the path: a user's ``types.py`` or ``numpy.py`` there
is then executed in place of the real one. ``-I`` would drop ``PYTHONPATH``, too, and ``-P`` is unknown to Python 3.10.
So this file is run by its path, ``interpreter.py PLACE MODULE ARGUMENT...``, and before anything is imported it takes
away what that puts on the path: its own directory. PLACE is what holds the package opscope, a directory or a zip file,
so that both processes are of one opscope wherever the first one found it.

An empty entry of ``PYTHONPATH`` is the current directory by the user's own wish, and stays.
"""

import sys  # built in, so that no file can take its place

if __name__ == "__main__" and not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
    del sys.path[0]  # with PYTHONSAFEPATH, which Python 3.11 brought, it is not there

import os
import runpy
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

FILE = Path(__file__).absolute()
"""This file, for where it is sent along."""
PACKAGE = FILE.parents[2]
"""Directory of the package opscope."""


def module_command(module: str, python: str | None = None) -> tuple[str, ...]:
    """What starts a module as a program, with the Python of this process or another; its arguments come behind.

    Another one gets none of the variables of Python: what they name is of this one's version.
    """
    names = ("-X", "utf8") if sys.flags.utf8_mode else ()  # so that names of files are the same there
    started = (sys.executable,) if python in {None, sys.executable} else (str(python), "-E")
    return (*started, *names, *module_words(str(FILE), str(PACKAGE.parent), module))


def module_words(file: str, place: str, module: str) -> tuple[str, ...]:
    """The arguments that make any Python start a module."""
    return (file, place, module)


def path_variables() -> dict[str, str]:
    """Variables of a child that runs in a directory of its own: relative entries of PYTHONPATH are meant from here."""
    path = os.environ.get("PYTHONPATH")
    if not path:
        return {}
    return {"PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in path.split(os.pathsep))}


def main(place: str, module: str, *arguments: str) -> None:
    """Run a module as a program, with the package opscope of a place."""
    spec = PathFinder.find_spec("opscope", [place])
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"there is no opscope in {place}", name="opscope")
    package = sys.modules["opscope"] = module_from_spec(spec)
    spec.loader.exec_module(package)
    sys.argv[:] = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
