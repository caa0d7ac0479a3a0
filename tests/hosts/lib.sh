# shellcheck shell=bash
# Sourced by the scripts of tests/hosts: what they run on, which build/setup does not fetch for everybody.
. "$(dirname "${BASH_SOURCE[0]}")/../../build/lib.sh"
. "$ROOT/build/versions.sh"
. "$ROOT/build/packages.sh"
. "$ROOT/build/fetch.sh"
UNREACHABLE=skip

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
# Settings of whoever runs the tests must not reach them.
for name in "${!GGML_VK_COMM_@}"; do unset "$name"; done
unset LD_PRELOAD

# need: installs those that `want` has noted down, or skips.
need() {
    [ ${#missing[@]} = 0 ] || (install_wanted "$DEPS/apt.log") || skip "needs ${missing[*]}"
    missing=()
}

# get_release TAG: fetches what use_release of build/fetch.sh names.
get_release() {
    lock_deps
    use_release "$1"
    if ! fetched "$RELEASE_LIBDIR" "$RELEASE_PACKAGE_VERSION" || ! fetched "$RELEASE_SRC" "$RELEASE_PACKAGE_VERSION"; then
        want_npm
        need
    fi
    fetch_release "$1"
    unlock_deps
}

# until_no_signal NAME COMMAND...: output goes to NAME.log. Stock llama.cpp now and then corrupts its own memory on lavapipe, so
# a run that dies of a signal is repeated, and says so.
until_no_signal() {
    local name=$1 try status
    shift
    for ((try = 1; try <= STOCK_TRIES; try++)); do
        status=0
        "$@" >"$tmp/$name.log" 2>&1 || status=$?
        [ "$status" -ge 128 ] || break
        say "$name died of signal $((status - 128)); try $try of $STOCK_TRIES"
    done
    if [ "$status" = "$SKIP" ]; then
        cat "$tmp/$name.log"
        exit "$SKIP"
    fi
    [ "$status" = 0 ] || { tail -n 20 "$tmp/$name.log" >&2; die "$name: status $status"; }
}

# hooks_bound FILE...: by what ld.so wrote (LD_DEBUG=bindings), the shim was in the process and ggml's calls went through it;
# without that, a host that is left alone shows nothing.
hooks_bound() {
    grep -qs "libggml-base.so .*to $SHIM .*ggml_backend_buffer_free" "$@" || die "the hooks were not bound: nothing is shown"
}
