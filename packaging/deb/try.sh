#!/bin/sh
# Installs dist/*.deb in a clean Debian of this host's release, boots it, and does there what docs/install.md says.
# Needs root, mmdebstrap and systemd-nspawn; without them it says what was not tried, and is content.
set -eu
cd "$(dirname "$0")/../.."
umask 022

here=packaging/deb
base=$PWD/build/deb/debian
tree=$PWD/build/deb/tried
log=$PWD/build/deb/try.log

not_tried() {
    echo "The packages were built, but not installed, started or purged in a clean Debian: $1."
    exit 0
}
[ "$(id -u)" = 0 ] || not_tried "that needs root"
for command in mmdebstrap systemd-nspawn; do
    command -v "$command" >/dev/null || not_tried "there is no $command"
done
release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
[ -n "$release" ] || not_tried "/etc/os-release names no release"

# A failure shows the whole story: what was said inside, and the journal.
doing=""
ending() {
    code=$?
    if [ "$code" -ne 0 ]; then
        cat "$log" >&2
        echo "FAILED: $doing. The log is $log, the tree $tree." >&2
    fi
}
trap ending EXIT

# The clean Debian, made once for a release, with this host's own package sources.
make_base() {
    if [ "$(cat "$base/etc/rackwright-base" 2>/dev/null)" = "$release" ]; then
        return
    fi
    rm -rf "$base"
    echo "Making a clean Debian ($release)"
    set --
    for source in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
        [ -s "$source" ] && set -- "$@" "$source"
    done
    mmdebstrap --variant=minbase --include=systemd,systemd-sysv,dbus,python3,openssl "$release" "$base" "$@" \
        >"$log" 2>&1
    echo "$release" >"$base/etc/rackwright-base"
}

# The packages, and the unit that tries them as soon as the system is up, and then ends it.
prepare() {
    rm -rf "$tree"
    cp -a "$base" "$tree"
    rm "$tree/etc/rackwright-base"
    echo tried >"$tree/etc/hostname"
    printf '127.0.0.1 localhost tried control.example\n' >"$tree/etc/hosts"
    mkdir "$tree/srv/debs"
    cp dist/rackwright*.deb "$tree/srv/debs/"
    cp $here/try-inside.sh "$tree/root/"
    cat >"$tree/etc/systemd/system/try.service" <<UNIT
[Unit]
Description=Tries the packages
After=rackwright-control-plane.service rackwright-agent.service
SuccessAction=poweroff-force
FailureAction=poweroff-force
[Service]
Type=oneshot
Environment=HOME=/root
ExecStart=/bin/sh /root/try-inside.sh
StandardOutput=append:/root/try.log
StandardError=append:/root/try.log
TimeoutStartSec=300
[Install]
WantedBy=multi-user.target
UNIT
    mkdir -p "$tree/etc/systemd/system/multi-user.target.wants"
    ln -s ../try.service "$tree/etc/systemd/system/multi-user.target.wants/try.service"
}

# As in an image that is being made: no systemd runs. Once with apt, and once more on top.
install_in_chroot() {
    echo "-- an installation in a chroot, and one over it"
    chroot "$tree" env DEBIAN_FRONTEND=noninteractive sh -c 'apt-get install --yes /srv/debs/*.deb'
    chroot "$tree" env DEBIAN_FRONTEND=noninteractive sh -c 'dpkg --install /srv/debs/*.deb'
    echo "-- the units are sound"
    chroot "$tree" systemd-analyze verify rackwright-agent.service rackwright-daemon.service \
        rackwright-control-plane.service
    echo "-- exposure"
    for unit in rackwright-agent.service rackwright-control-plane.service; do
        chroot "$tree" systemd-analyze security --no-pager --offline=true "/usr/lib/systemd/system/$unit" | tail -n 1
    done
}

begun=$(date +%s)
mkdir -p build/deb
: >"$log"
doing="making a clean Debian"
make_base
prepare
doing="installing the packages in a chroot"
install_in_chroot >"$log" 2>&1
doing="using the packages in the booted system"
timeout 400 systemd-nspawn --quiet --directory "$tree" --boot --private-network --register=no --keep-unit \
    >build/deb/console.log 2>&1 </dev/null || true
cat "$tree/root/try.log" >>"$log" 2>/dev/null || cat build/deb/console.log >>"$log"
tail -n 1 "$log" | grep -q '^ALL DONE$'
grep -E '^(-- |→)' "$log" | sed -e 's/^-- /  ok  /' -e 's/^→ /      /'
echo "Installed, booted, used and purged in a clean Debian ($release): $(($(date +%s) - begun)) s"
rm -rf "$tree"
