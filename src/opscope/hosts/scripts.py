"""Scripts on a device between opscope and its programs: lines for any POSIX shell, of Linux, Android and macOS.

Every script is the argument of ``sh -c``; what it works on comes as words, never inside its text.
"""

from __future__ import annotations

# $1 seconds, $2 directory, made when it is missing, $3... the command. The command gets a process group of its own,
# which is ended when the time is up or when standard input ends: then the connection, or opscope, is gone. Who waits
# for either is a process of its own that is killed at the end: a shell that waits can miss a signal (as mksh, the
# shell of Android, does under load). Programs without setsid are given a group by the shell's job control. What
# leaves the group of the command, as `timeout` does, is found by the command's session, and ended with it.
GUARD = r"""
trap '' HUP
seconds=$1 dir=$2
shift 2
mkdir -p "$dir" && cd "$dir" || exit 125
exec 3<&0 2>/dev/null
if command -v setsid >/dev/null; then
  apart=setsid
else
  apart=
  set -m
fi
$apart "$@" >log.txt 2>&1 3<&- </dev/null &
child=$!
$apart sh -c 'cat; kill -KILL "-$1"' watch "$child" <&3 3<&- >/dev/null &
watch=$!
$apart sh -c 'sleep "$1"; : >timed-out; kill -KILL "-$2"' timer "$seconds" "$child" </dev/null 3<&- >/dev/null &
timer=$!
wait $child
code=$?
for group in $watch $timer $child; do
  kill -KILL "-$group"
done
kill -KILL $watch $timer
[ -n "$apart" ] && for stat in /proc/[0-9]*/stat; do
  read -r line <"$stat" || continue
  set -- ${line##*) }
  [ "$4" = "$child" ] && kill -KILL "${line%% *}"
done 2>/dev/null
for file in *; do
  [ -f "$file" ] && echo "file $file"
done
exit $code
"""

# $1 directory with libraries, $2... the command, which this process becomes.
START = r"""
[ -n "$1" ] && export LD_LIBRARY_PATH="$1"
shift
exec "$@"
"""

_LOCK_PLACE = r"""
everyones=/tmp
[ -d /data/local/tmp ] && everyones=/data/local/tmp
lock=${OPSCOPE_LOCK:-$everyones/opscope.lock}
"""

# What tells the boot of this machine; whether a process lives; and whether a word is a ticket, a number and a process.
_ALIVE = r"""
boot=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null || sysctl -n kern.bootsessionuuid 2>/dev/null)
mark=
for word in $boot; do mark=$mark$word; done
lives() {
  if [ -d /proc/self ]; then [ -d "/proc/$1" ]; else ps -p "$1" >/dev/null 2>&1; fi
}
is_ticket() {
  case $1 in
    *[!0-9.]* | .* | *. | *.*.* | ?????????????????????*) return 1 ;;
    *.*) return 0 ;;
  esac
  return 1
}
"""

# $1 who we are. A place in the line for the lock, which is kept as long as standard input is open: a link to a text, as
# the marks of guests are. Its name has a number, one more than those that are there, and our process, so that two that
# come at one moment have different ones. The lowest one of a living process is the first in line.
TICKET = rf"""
trap '' HUP
umask 022
{_LOCK_PLACE}
{_ALIVE}
number=0
for other in "$lock".ticket.*; do
  place=${{other##*.ticket.}}
  is_ticket "$place" && [ "${{place%%.*}}" -gt "$number" ] && number=${{place%%.*}}
done
own=$((number + 1)).$$
if ln -s "$mark $1" "$lock.ticket.$own" 2>/dev/null; then
  echo "ticket $own"
  cat >/dev/null
  rm -f "$lock.ticket.$own"
else
  echo none
fi
"""

# $1 who we are, $2 alone or beside, $3 our ticket, empty for none. Alone, the lock is left to those who stand in line
# before us: all of them where we have no ticket. While there is one we never try to take it, since it may be released
# at any moment.
# The lock is a directory of everyone's, since its making is one step everywhere; in it stand the process that keeps it,
# the boot it belongs to, and who asked. It goes when standard input ends. One that we left behind when a connection was
# lost is taken over; so is one whose process is gone, that is older than the boot, or that stays empty. One that goes
# while it is looked at is taken. What was moved away is looked at again: another host may have taken it meanwhile.
# Who measures beside the holder leaves two marks that go with it: one in the lock, which tells the holder, and one next
# to the lock, which tells those who come later. Marks are links to a text: no other file can be written by making one.
# The directory opens to others when the holder's file stands in it: nobody can put a link in that file's place before.
# A directory that holds anything else is no lock, and stays as it is.
LOCK = r"""
trap '' HUP
umask 022
@PLACE
@ALIVE
own=$1
mode=$2
ticket=$3
before_us() {
  for other in "$lock".ticket.*; do
    place=${other##*.ticket.}
    [ -L "$other" ] && is_ticket "$place" || continue
    told=$(readlink "$other")
    case $told in *" by "*", process "*", since "*) ;; *) continue ;; esac
    number=${place%%.*}
    pid=${place##*.}
    if [ "${told%% *}" != "$mark" ] || ! lives "$pid"; then
      rm -f "$other"
    elif [ -z "$ticket" ] || [ "$number" -lt "${ticket%%.*}" ] ||
      { [ "$number" -eq "${ticket%%.*}" ] && [ "$pid" -lt "${ticket##*.}" ]; }; then
      echo "$place ${told#* }"
    fi
  done | sort -n
}
take() {
  mkdir -m 700 "$lock" 2>/dev/null && printf '%s\n%s\n%s\n' "$$" "$boot" "$1" >"$lock/holder" && chmod 1777 "$lock"
}
is_lock() {
  [ ! -L "$1" ] || return 1
  for file in "$1"/* "$1"/.[!.]*; do
    [ -e "$file" ] || [ -L "$file" ] || continue
    case ${file##*/} in
      holder) [ -f "$file" ] && [ ! -L "$file" ] || return 1 ;;
      beside.*) [ -L "$file" ] || return 1 ;;
      *) return 1 ;;
    esac
  done
  read_holder "$1"
  case $pid in *[!0-9]*) return 1 ;; esac
}
drop() {
  is_lock "$1" || return 1
  for file in "$1"/beside.*; do
    [ -L "$file" ] && rm -f "$file"
  done
  rm -f "$1/holder"
  rmdir "$1"
}
let_go() {
  [ -L "$lock.guest.$$" ] && rm -f "$lock.guest.$$"
}
read_holder() {
  pid= then= who=
  { read -r pid; read -r then; read -r who; } 2>/dev/null <"$1/holder"
}
guests() {
  for guest in "$lock".guest.*; do
    [ -L "$guest" ] || continue
    pid=${guest##*.}
    told=$(readlink "$guest")
    if [ "$pid" != "$$" ]; then
      if [ "${told%% *}" = "$mark" ] && lives "$pid"; then
        echo "${told#* }"
      else
        rm -f "$guest"
      fi
    fi
  done
}
held() {
  if [ "$mode" != beside ]; then
    echo "held $(($(before_us | wc -l))) $1"
    exit 1
  fi
  ln -s "$own" "$lock/beside.$$" 2>/dev/null
  echo "beside $1"
  cat >/dev/null
  let_go
  exit 0
}
if [ "$mode" = beside ]; then
  let_go
  ln -s "$mark $own" "$lock.guest.$$" 2>/dev/null
fi
first=
[ "$mode" = beside ] || first=$(before_us | head -n 1)
if [ -n "$first" ] || { ! take "$own" && { [ -d "$lock" ] || ! take "$own"; }; }; then
  if [ ! -d "$lock" ]; then
    [ -n "$first" ] && held "${first#* }"
    echo "refused $lock"
    exit 1
  fi
  if ! is_lock "$lock"; then
    echo "foreign $lock"
    exit 1
  fi
  read_holder "$lock"
  if [ -z "$pid" ]; then
    sleep 2
    read_holder "$lock"
  fi
  if [ "$who" = "$1" ]; then
    kill "$pid" 2>/dev/null
  elif [ -n "$pid" ] && [ "$then" = "$boot" ] && lives "$pid"; then
    held "$who"
  elif [ -n "$first" ]; then
    held "${first#* }"
  fi
  old=$pid
  if mv "$lock" "$lock.$$" 2>/dev/null; then
    read_holder "$lock.$$"
    if [ "$pid" != "$old" ]; then
      mv "$lock.$$" "$lock"
      held "$who"
    fi
    drop "$lock.$$"
  fi
  if ! take "$1"; then
    echo "left $lock $who"
    exit 1
  fi
fi
others=$(guests)
if [ -n "$others" ] && [ "$mode" != beside ]; then
  drop "$lock"
  held "$(echo "$others" | head -n 1)"
fi
number=0
[ -n "$others" ] && echo "$others" | while read -r other; do
  number=$((number + 1))
  ln -s "$other" "$lock/beside.before$number"
done
let_go
echo taken
cat >/dev/null
read_holder "$lock"
[ "$pid" = "$$" ] && drop "$lock"
""".replace("@PLACE", _LOCK_PLACE).replace("@ALIVE", _ALIVE)

# What tells this lock from all others: the boot of its machine, and where it is there.
WHICH = f"""
{_LOCK_PLACE}
cat /proc/sys/kernel/random/boot_id 2>/dev/null || sysctl -n kern.bootsessionuuid 2>/dev/null || echo
echo "$lock"
"""

# Who measured beside the holder of the lock, a line each.
BESIDE = f"""
{_LOCK_PLACE}
for guest in "$lock"/beside.*; do
  [ -L "$guest" ] && readlink "$guest"
done
exit 0
"""

# What control groups grant of the processors' time: time and period, a line for each group that we are in.
_QUOTA = r"""
part quota
[ -r /proc/self/cgroup ] && while IFS=: read -r _ kinds path; do
  case ,$kinds, in
    ,,) base=/sys/fs/cgroup ;;
    *,cpu,*) base=/sys/fs/cgroup/$kinds ;;
    *) continue ;;
  esac
  while :; do
    cat "$base$path/cpu.max"
    [ -f "$base$path/cpu.cfs_quota_us" ] && echo $(cat "$base$path/cpu.cfs_quota_us" "$base$path/cpu.cfs_period_us")
    [ -n "$path" ] || break
    path=${path%/*}
  done
done </proc/self/cgroup
"""

# What the device is. One part a heading; what is not there is left empty.
FACTS = r"""
LC_ALL=C
export LC_ALL
part() { printf '\n@@%s\n' "$1"; }
part system; uname -s
part machine; uname -m
part kernel; uname -r
part os
(. /etc/os-release && printf '%s\n' "$PRETTY_NAME") || sw_vers -productVersion || getprop ro.build.version.release
part cpuinfo; head -c 65536 /proc/cpuinfo
part model; tr '\0' '\n' </proc/device-tree/model || sysctl -n machdep.cpu.brand_string
part cpus; getconf _NPROCESSORS_CONF
part usable; (unset OMP_NUM_THREADS OMP_THREAD_LIMIT; nproc || getconf _NPROCESSORS_ONLN)
part meminfo; head -c 4096 /proc/meminfo
part memory; sysctl -n hw.memsize
part governor; cat /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor
part libc; getconf GNU_LIBC_VERSION
@QUOTA
part host; uname -n
cat /etc/machine-id || ioreg -rd1 -c IOPlatformExpertDevice | sed -n 's/.*"IOPlatformUUID" = "\(.*\)"/\1/p'
part firmware
cat /sys/class/dmi/id/bios_vendor /sys/class/dmi/id/bios_version || cat /proc/device-tree/chosen/bootloader/version ||
  getprop ro.bootloader
part stat; cat /proc/self/stat
part runs; readlink /proc/thread-self/exe
part end
""".replace("@QUOTA", _QUOTA)

# The state it is in.
CONDITIONS = r"""
LC_ALL=C
export LC_ALL
part() { printf '\n@@%s\n' "$1"; }
part load; cat /proc/loadavg || sysctl -n vm.loadavg
part usable; (unset OMP_NUM_THREADS OMP_THREAD_LIMIT; nproc || getconf _NPROCESSORS_ONLN)
part khz; cat /sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq
part millicelsius; cat /sys/class/thermal/thermal_zone*/temp
@QUOTA
part end
""".replace("@QUOTA", _QUOTA)

# $1 directory, of the user's home when it is relative.
PLACE = r"""
case $1 in
  /*) printf '%s\n' "$1" ;;
  *) printf '%s/%s\n' "$(pwd)" "$1" ;;
esac
"""

# $1 directory: whether files can be kept in it, and the room there.
STORAGE = r"""
probe=$1/.room-$$
mkdir -p "$1" && mkdir "$probe" && echo writable && rmdir "$probe"
df -Pk "$1" 2>/dev/null | tail -n 1
"""
