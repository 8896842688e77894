#!/bin/sh
# Installs the Debian packages that a target uses, as root; otherwise says what stands in for each.
# Usage: debian-packages.sh PURPOSE   (python, demo, test, e2e, bench, deb, ramdisk, os-image)
set -eu

machine="qemu-system-x86 qemu-utils ovmf seabios ipxe-qemu"
boot_media="grub-common grub-pc-bin grub-efi-amd64-bin xorriso mtools cpio busybox-static"
ramdisk="mmdebstrap debian-archive-keyring kmod squashfs-tools zstd grub-common xorriso mtools"
network_tools="dnsmasq-base"
libvirt="libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients python3-libvirt"
os_image="mmdebstrap zstd fdisk e2fsprogs mtools grub-common grub-pc-bin grub-efi-amd64-bin"
disk_tools="fdisk gdisk dosfstools xfsprogs btrfs-progs mdadm"

case "$1" in
python) packages="python3-venv" ;;
demo) packages="openipmi ipmitool" ;;
test | e2e)
    packages="openipmi ipmitool openssh-server postgresql $machine $boot_media $ramdisk $disk_tools $network_tools"
    [ "$1" = test ] || packages="$packages $libvirt"
    ;;
bench) packages="ipmitool postgresql curl nginx-light $machine $ramdisk" ;;
ramdisk) packages=$ramdisk ;;
os-image) packages=$os_image ;;
deb) packages="mmdebstrap systemd-container" ;;
*)
    echo "unknown purpose: $1" >&2
    exit 2
    ;;
esac

stand_in() {
    case "$1" in
    openipmi) echo "our own IPMI peer stands in for ipmi_sim" ;;
    openssh-server) echo "the SSH console is tried against our own servers only" ;;
    ipmitool) echo "what is held against ipmitool is left out" ;;
    qemu-system-x86 | ovmf | seabios | ipxe-qemu) echo "no virtual machine is booted" ;;
    qemu-utils | fdisk | gdisk | dosfstools | xfsprogs | btrfs-progs | mdadm) echo "what is held against it is left out" ;;
    grub-* | xorriso | mtools | cpio | busybox-static) echo "no boot medium is made" ;;
    mmdebstrap | systemd-container) echo "nothing is tried in a clean Debian, and no ramdisk is built" ;;
    debian-archive-keyring | kmod | squashfs-tools | zstd) echo "no ramdisk is built" ;;
    libvirt-* | python3-libvirt) echo "the run on libvirt is left out" ;;
    postgresql) echo "the tests on PostgreSQL are left out; SQLite is still tested" ;;
    *) echo "this target needs it" ;;
    esac
}

missing=""
for package in $packages; do
    if ! dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed'; then
        missing="$missing $package"
    fi
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing the Debian packages:$missing"
    log=$(mktemp)
    # shellcheck disable=SC2086
    if { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing; } \
        >"$log" 2>&1; then
        rm -f "$log"
        exit 0
    fi
    tail -n 5 "$log" >&2
    rm -f "$log"
    echo "They could not be installed." >&2
fi
for package in $missing; do
    echo "Without the Debian package $package: $(stand_in "$package")."
done
