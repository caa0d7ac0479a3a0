# shellcheck shell=bash
# Sourced after lib.sh by what installs Debian packages: build/setup, and the few tests that need more than it does.

missing=()
# want PACKAGE CHECK...: notes PACKAGE down where CHECK fails. It looks for what is used, not for package names: a newer node
# or cmake from elsewhere is as good.
want() {
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}

# install_wanted LOG: installs what `want` has noted down; apt-get's output goes to LOG.
install_wanted() {
    local as_root=()
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || die "missing: ${missing[*]} (Debian's names); there is no apt-get here, install them by other means"
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || die "missing: ${missing[*]}; run as root: apt-get install --no-install-recommends ${missing[*]}"
        as_root=(sudo)
    fi
    say "installing ${missing[*]}"
    "${as_root[@]}" apt-get -qq update >&2
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends "${missing[@]}" >"$1" 2>&1 ||
        { tail -n 20 "$1" >&2; die "apt-get install failed, its output is in $1"; }
    missing=()
}

want_npm() { # fetches llama.cpp
    want nodejs command -v node
    want npm command -v npm
}
