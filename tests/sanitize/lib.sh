# shellcheck shell=bash
# Sourced by the scripts of tests/sanitize, after build/lib.sh.

# go_flags address|thread: sets flags, and the environment of go.
go_flags() {
    flags=()
    case $1 in
        address)
            flags=(-asan)
            export CGO_CFLAGS="-g -O1 -fsanitize=undefined -fno-sanitize-recover=undefined" CGO_LDFLAGS="-fsanitize=undefined"
            ;;
        thread) export CGO_CFLAGS="-g -O1 -fsanitize=thread" CGO_LDFLAGS="-fsanitize=thread" ;;
        *) die "sanitizer is '$1', accepted: address, thread" ;;
    esac
}

# sanitizer_options DIRECTORY: the environment of what runs. An error aborts; leaks are written to DIRECTORY/report.* and judged
# by unknown_leaks. SIGSEGV stays with the Go runtime, which has a handler of its own; both end the process.
sanitizer_options() {
    local known
    known=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/races.supp
    export ASAN_OPTIONS=handle_segv=0:abort_on_error=1:exitcode=0:detect_leaks=1:quarantine_size_mb=64:log_path=$1/report
    export UBSAN_OPTIONS=print_stacktrace=1:log_path=$1/report
    export TSAN_OPTIONS=handle_segv=0:history_size=4:halt_on_error=1:abort_on_error=1:suppressions=$known:print_suppressions=0:log_path=$1/report
}

# unknown_leaks DIRECTORY: prints the direct leaks in its reports (indirect ones hang on them) but these:
#   - 48 bytes that lavapipe 22.3 allocates for each different kernel of a process, ggml's and ours; there are 6 after one
#     communicator and after sixteen (10 with more algorithms). What the plugin forgets to destroy is of lavapipe's making
#     too, which is why that library is not left out altogether.
#   - ggml's list of Vulkan devices, which it makes once and empties as the process ends.
unknown_leaks() {
    find "$1" -name 'report.*' -exec cat {} + | awk '
        /^(Direct|Indirect) leak of/ { text = $0; bytes = $4; objects = $7; frames = driver = ggml = 0; next }
        /^ *#[0-9]/ && text != "" {
            text = text "\n" $0; frames++; driver += /libvulkan_lvp/; ggml += /ggml_backend_vk_reg_get_device/; next
        }
        text != "" {
            known = bytes == 48 * objects && frames == 2 && driver == 1 || ggml
            if (text ~ /^Direct/ && !known) print text
            text = ""
        }'
}
