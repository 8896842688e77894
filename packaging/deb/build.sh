#!/bin/sh
# Builds dist/*.deb from this tree and the locked list of packages. Needs no root. The same input gives the same bytes.
# Usage: build.sh [FOLDER]   FOLDER takes the place of dist.
#
#   rackwright                 the program and all that it needs, in a tree of its own: /opt/rackwright/lib;
#                              documents and examples
#   rackwright-agent           the agent's service, user and settings
#   rackwright-daemon          the same of the agent on an installed machine, which runs as root
#   rackwright-control-plane   the same of the control plane
#
# The services share one tree, so that a host with several has it once, and all in one version.
# The first package fits one minor version of Python: compiled modules are made for one.
set -eu
cd "$(dirname "$0")/../.."
umask 022
# Neither the order of sets nor the time of day gets into a file.
export LC_ALL=C TZ=UTC PYTHONHASHSEED=0

command -v dpkg-deb >/dev/null || {
    echo "There is no dpkg-deb: build the packages on Debian, or install its dpkg here." >&2
    exit 1
}

python=$PWD/.venv/bin/python
here=packaging/deb
output=${1:-dist}
work=$PWD/build/deb
[ $# -eq 0 ] || work=$output/work
stage=$work/stage
tree=/opt/rackwright/lib
maintainer="Rackwright maintainers <maintainers@rackwright.example>"

# The time of every file: that of the last commit; in a tree without commits, that of the locked list.
epoch() {
    git log -1 --format=%ct 2>/dev/null || stat -c %Y requirements/runtime.txt
}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(epoch)}
export SOURCE_DATE_EPOCH

version=$("$python" -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')
architecture=$(dpkg --print-architecture)

# fill TEMPLATE FILE: with the names that a package's own files leave open.
fill() {
    sed -e "s|@VERSION@|$version|g" -e "s|@ARCHITECTURE@|$architecture|g" -e "s|@MAINTAINER@|$maintainer|g" \
        -e "s|@SERVICE@|${service:-}|g" -e "s|@DEPENDS@|${depends:-}|g" -e "s|@TREE@|$tree|g" "$1" >"$2"
}

# The Python packages and our own wheel, byte-compiled.
make_tree() {
    lib=$stage/rackwright$tree
    mkdir -p "$lib"
    "$python" -m pip install --quiet --disable-pip-version-check --no-compile --only-binary :all: --no-deps \
        --require-hashes --requirement requirements/runtime.txt --target "$lib"
    # Their commands would look for a Python where this tree was built; the lists of files would tell where that was.
    rm -rf "$lib/bin"
    sed -i '/^\.\.\/\.\.\/bin\//d' "$lib"/*.dist-info/RECORD
    rm -rf "$work/wheel"
    said=$("$python" -m hatchling build --target wheel --directory "$work/wheel" 2>&1) || {
        echo "$said" >&2
        exit 1
    }
    "$python" -m zipfile -e "$work"/wheel/*.whl "$lib"
    # Unchecked: the sources never change below these files, and no start compares their times.
    # One at a time: what is compiled must not depend on which worker came first.
    "$python" -I -m compileall -q -j 1 --invalidation-mode unchecked-hash -s "$stage/rackwright" "$lib"
}

make_completion() {
    usr=$stage/rackwright/usr
    mkdir -p "$usr/share/bash-completion/completions" "$usr/share/zsh/vendor-completions" \
        "$usr/share/fish/vendor_completions.d"
    run="$python -I -m rackwright completion"
    $run bash >"$usr/share/bash-completion/completions/rackwright"
    $run zsh >"$usr/share/zsh/vendor-completions/_rackwright"
    $run fish >"$usr/share/fish/vendor_completions.d/rackwright.fish"
}

# In the same places to each other as in the repository, so that their links lead somewhere.
make_documents() {
    share=$stage/rackwright/usr/share/doc/rackwright
    mkdir -p "$share"
    cp -r docs examples "$share/"
}

make_program() {
    make_tree
    mkdir -p "$stage/rackwright/usr/bin"
    fill $here/rackwright/launcher "$stage/rackwright/usr/bin/rackwright"
    chmod 755 "$stage/rackwright/usr/bin/rackwright"
    make_completion
    make_documents
    depends=$("$python" $here/depends.py "$stage/rackwright$tree")
}

# The unit, user (where it has one of its own), folder and settings of one service.
make_service() {
    service=$1
    root=$stage/$service
    mkdir -p "$root/usr/lib/systemd/system" "$root/etc/rackwright" "$root/DEBIAN"
    cp "systemd/$service.service" "$root/usr/lib/systemd/system/"
    if [ -e "systemd/$service.sysusers" ]; then
        mkdir -p "$root/usr/lib/sysusers.d"
        cp "systemd/$service.sysusers" "$root/usr/lib/sysusers.d/$service.conf"
    fi
    settings=${service#rackwright-}.toml
    cp "$here/$service/$settings" "$root/etc/rackwright/"
    echo "/etc/rackwright/$settings" >"$root/DEBIAN/conffiles"
    for script in postinst prerm postrm; do
        fill "$here/service/$script" "$root/DEBIAN/$script"
        chmod 755 "$root/DEBIAN/$script"
    done
}

# The documents that every package has, its list of sums, and the file itself.
pack() {
    name=$1
    root=$stage/$name
    mkdir -p "$root/DEBIAN" "$root/usr/share/doc/$name"
    cp $here/copyright "$root/usr/share/doc/$name/"
    gzip -9nc CHANGELOG.md >"$root/usr/share/doc/$name/changelog.gz"
    fill "$here/$name/control" "$root/DEBIAN/control"
    echo "Installed-Size: $(installed_kibibytes "$root")" >>"$root/DEBIAN/control"
    (cd "$root" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    find "$root" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
    kind=$(sed -n 's/^Architecture: //p' "$root/DEBIAN/control")
    dpkg-deb -Zxz --root-owner-group --build "$root" "$output/${name}_${version}_$kind.deb" >/dev/null
}

# What the files hold, not what they take on this disk: that differs between file systems.
installed_kibibytes() {
    find "$1" -path "$1/DEBIAN" -prune -o -type f -printf '%s\n' | awk '{ sum += int(($1 + 1023) / 1024) } END { print sum }'
}

rm -rf "$stage"
mkdir -p "$stage" "$output"
rm -f "$output"/rackwright_*.deb "$output"/rackwright-*.deb
make_program
make_service rackwright-agent
make_service rackwright-daemon
make_service rackwright-control-plane
for name in rackwright rackwright-agent rackwright-daemon rackwright-control-plane; do
    pack "$name"
done
rm -rf "$stage" "$work/wheel"
for package in "$output"/rackwright*_"${version}"_*.deb; do
    echo "$package  $(($(stat -c %s "$package") / 1024)) KiB"
done
