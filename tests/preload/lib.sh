# shellcheck shell=bash
# Sourced by the scripts of tests/preload, which build/ranks starts and which get VKCOMM_TEST_LIBDIR.
. "$(dirname "${BASH_SOURCE[0]}")/../../build/lib.sh"

# What the user has set must not reach the tests.
for name in "${!GGML_VK_COMM_@}"; do unset "$name"; done
unset LD_PRELOAD

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# Many runs are expected to be quiet: what they wrote is shown only on a failure.
fail_with() { # fail_with FILE MESSAGE
    cat "$1" >&2
    die "$2"
}

# expect_lines N PATTERN FILE: FILE holds the plugin's line PATTERN N times.
expect_lines() {
    local have
    have=$(grep -c -e "ggml_vk_comm: $2" "$3" || true)
    [ "$have" = "$1" ] ||
        die "$have lines of the plugin match '$2', expected $1: $(grep 'ggml_vk_comm: ' "$3" || echo "no line at all")"
}
