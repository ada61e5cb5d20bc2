# Holds a device for one host as long as its standard input is open, with the device's settings as that host wants them.
# Arguments: directory, owner, then NAME=VALUE for global settings, and stayon to wake the screen.
# Prints a line a fact: held PID OWNER, left, saved NAME VALUE, refused NAME, restored NAME VALUE, stuck NAME VALUE, ready.
# adbd sends SIGHUP and closes the pipes when the connection ends; the settings must still be put back then.
trap '' HUP PIPE INT
dir=$1 owner=$2
shift 2

restore() {
    [ -f settings.saved ] || return 0
    stuck=
    while read -r name value; do
        if [ "$value" = null ]; then
            settings delete global "$name" </dev/null >/dev/null 2>&1
        else
            settings put global "$name" "$value" </dev/null >/dev/null 2>&1
        fi
        if [ "$(settings get global "$name" </dev/null 2>/dev/null)" = "$value" ]; then
            echo "restored $name $value"
        else
            stuck=1
            echo "stuck $name $value"
        fi
    done < settings.saved
    [ -z "$stuck" ] && rm -f settings.saved
}

leave() {
    trap '' TERM
    restore
    rm -f owner
    exit 0
}

mkdir -p "$dir" && cd "$dir" || exit 1
exec 9>>lock || exit 1
# A guard whose host has just gone puts settings back before it lets go. One of our own, from a connection that was lost
# without its end being heard here, is told to do so.
for try in 1 2 3; do
    flock -n 9 9>&9
    code=$?
    [ $code = 1 ] || break
    read -r pid who < owner
    [ "$who" = "$owner" ] && kill "$pid"
    sleep 1
done 2>/dev/null
case $code in
0) ;;
1) echo "held $(cat owner 2>/dev/null)"; exit 1 ;;
*) echo "flock does not work here, Android has it since version 7"; exit 1 ;;
esac
echo "$$ $owner" > owner || exit 1
trap leave TERM
if [ -f settings.saved ]; then
    echo "left $(wc -l < settings.saved) settings"
    restore
    [ -f settings.saved ] && exit 1
fi

wake=
: > settings.new || exit 1
for wanted in "$@"; do
    if [ "$wanted" = stayon ]; then
        wake=1
        continue
    fi
    name=${wanted%%=*}
    value=$(settings get global "$name" </dev/null) || exit 1
    echo "$name $value" >> settings.new || exit 1
    echo "saved $name $value"
done
if [ -s settings.new ]; then
    sync
    mv settings.new settings.saved || exit 1
fi
rm -f settings.new
for wanted in "$@"; do
    [ "$wanted" = stayon ] && continue
    name=${wanted%%=*}
    settings put global "$name" "${wanted#*=}" </dev/null
    if [ "$(settings get global "$name" </dev/null)" != "${wanted#*=}" ]; then
        echo "refused $name"
        leave
    fi
done
[ -n "$wake" ] && svc power stayon true </dev/null
echo ready
while read -r _; do :; done
leave
