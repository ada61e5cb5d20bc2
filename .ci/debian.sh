# Files of Debian's packages without installing them, for the scripts beside this one.
# Lists and archives are of their own, so that nothing of the machine's apt is changed, and no other user is needed.

# The mirror of the machine's own first source of Debian, in either format of apt.
mirror() {
  {
    cat /etc/apt/sources.list.d/*.sources 2>/dev/null | awk '$1 == "URIs:" { print $2 }'
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
      sed -n 's/^deb \(\[[^]]*\] \)\{0,1\}\([^ ]*\) .*/\2/p'
  } | grep -E '/debian/?$' | head -n 1
}

# unpack_debian HOW SUITE ARCHITECTURE DIRECTORY PACKAGE...
# HOW is "alone" for the packages as they are, "whole" for all that they depend on, too.
unpack_debian() {
  local how=$1 suite=$2 architecture=$3 directory=$4 state source code
  shift 4
  source=$(mirror)
  [[ -n $source ]] || return 1
  state=$(mktemp -d) && chmod 755 "$state"
  mkdir -p "$state/lists/partial" "$state/archives/partial" "$directory"
  : >"$state/status"
  echo "deb $source $suite main" >"$state/sources.list"
  local options=(
    -qq -y -o "Dir::Etc::sourcelist=$state/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State=$state"
    -o "Dir::State::lists=$state/lists" -o "Dir::State::status=$state/status" -o "Dir::Cache=$state"
    -o "Dir::Cache::archives=$state/archives" -o APT::Sandbox::User=root
    -o "APT::Architecture=$architecture" -o "APT::Architectures=$architecture"
  )
  local fetch=(download)
  [[ $how == whole ]] && fetch=(--no-install-recommends --download-only install)
  apt-get "${options[@]}" update >/dev/null 2>&1 &&
    (cd "$state/archives" && apt-get "${options[@]}" "${fetch[@]}" "$@" >/dev/null 2>&1) &&
    find "$state/archives" -name '*.deb' -exec dpkg-deb -x {} "$directory" \;
  code=$?
  rm -rf "$state"
  return "$code"
}
