# The source distribution and the wheel that is built from it, for the scripts beside this one.
# Those who use it have the root of the repository as their directory.

pip=(-m pip --quiet --disable-pip-version-check)

# What git tracks and the source distribution in directory $1 lacks; nothing where there is no git.
lacking() {
  comm -23 <(git -c core.quotePath=off ls-files 2>/dev/null | sort) <(cd "$1" && find . -type f | cut -c 3- | sort)
}

# build_distributions PYTHON DIRECTORY
# DIRECTORY/dist has both, DIRECTORY/source the tree of the source distribution, DIRECTORY/build the environment, whose
# pip is new enough to install for Python 3.13.
build_distributions() {
  local python=$1 place=$2 tool missing
  tool=$(sed -n 's/^requires = \["\(.*\)"\]/\1/p' pyproject.toml)
  mkdir "$place/source"
  "$python" -m venv "$place/build" &&
    "$place/build/bin/python" "${pip[@]}" install "$tool" 'pip>=24.1' &&
    build_one "$place" sdist &&
    tar -xf "$place"/dist/*.tar.gz -C "$place/source" --strip-components 1 || return
  missing=$(lacking "$place/source")
  [[ -z $missing ]] || { printf 'the source distribution lacks\n%s\n' "$missing"; return 1; }
  (cd "$place/source" && build_one "$place" wheel)
}

# What hatchling says is of interest only when it fails.
build_one() {
  local said
  said=$("$1/build/bin/python" -m hatchling build -t "$2" -d "$1/dist" 2>&1) || { echo "$said"; return 1; }
}

# install_in DIRECTORY PYTHON ENVIRONMENT WORD...
# An environment of PYTHON with what pip is given in words, by the pip that built in DIRECTORY. Compiling all of it would
# take longer than what is run there; Python compiles what it imports, unless PYTHONDONTWRITEBYTECODE is set.
install_in() {
  local place=$1 python=$2 environment=$3
  shift 3
  "$python" -m venv --without-pip "$environment" &&
    "$place/build/bin/python" "${pip[@]}" --python "$environment/bin/python" install --no-compile "$@"
}
