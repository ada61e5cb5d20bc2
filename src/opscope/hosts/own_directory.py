"""The directory on a device that opscope keeps for itself: it bears a mark, and nothing outside of it is removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.errors import OverwriteError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.hosts.shell import Finished, RemoteShell

OWN = "opscope"
"""Name of the directory, below the one that a target names."""
MARK = ".opscope-device"
"""File in it that says whose it is."""
_SECONDS = 60.0
_MARKED = f"""
marked() {{
  [ -f "$1/{MARK}" ] && [ ! -L "$1/{MARK}" ]
}}
"""
# $1 directory: made and marked where nothing is there, taken where it is empty or marked. Says "foreign" of all others.
_PREPARE = f"""{_MARKED}
dir=$1
marked "$dir" && exit 0
if [ -d "$dir" ]; then
  if [ -n "$(ls -A "$dir" 2>/dev/null)" ] && ! marked "$dir"; then
    echo foreign
    exit 1
  fi
elif [ -e "$dir" ] || [ -L "$dir" ]; then
  echo foreign
  exit 1
else
  mkdir -p "$dir" || exit 1
fi
echo 'opscope keeps its files in this directory, and removes them.' >"$dir/{MARK}"
"""
# $1 directory, $2... names in it, patterns of the shell.
_REMOVE = f"""{_MARKED}
dir=$1
shift
marked "$dir" || {{ echo "$dir bears no mark of opscope" >&2; exit 1; }}
for name; do
  case /$name/ in */../* | //*) exit 1 ;; esac
  for path in "$dir"/$name; do
    rm -rf "$path" || exit 1
  done
done
"""


def prepare(shell: RemoteShell, directory: str) -> None:
    """Make the directory where it is missing, and mark it; one that cannot be made is told by what is kept in it."""
    done = shell.run(["sh", "-c", _PREPARE, "opscope-prepare", directory], _SECONDS)
    if done.stdout.strip() == b"foreign":
        problem = f"{directory} exists, and opscope did not create it"
        hint = f"name a directory where opscope can create {OWN}, with ?dir=PATH in the address"
        raise OverwriteError(problem, where=shell.describe().name, hint=hint)


def remove(shell: RemoteShell, directory: str, names: Sequence[str]) -> Finished:
    """Remove files and directories of opscope's; nothing where the directory bears no mark."""
    return shell.run(["sh", "-c", _REMOVE, "opscope-remove", directory, *names], _SECONDS)
