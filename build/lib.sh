# shellcheck shell=bash
# Sourced by the scripts of build/: messages, paths, and which Vulkan devices there are.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
OUT=${VKCOMM_OUT:-$ROOT/build/out}
SKIP=77 # exit status of a test that cannot run on this machine (ctest SKIP_RETURN_CODE)

say() { echo "${0##*/}: $*" >&2; }
die() { say "error: $*"; exit 1; }
skip() { echo "${0##*/}: skipped: $*"; exit "$SKIP"; } # on stdout: ctest shows it

# version_at_least HAVE WANT: true when HAVE >= WANT (1.26.8 >= 1.26).
version_at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# The ICD file of lavapipe, Mesa's Vulkan on the CPU; empty when it is not installed.
lavapipe_icd() {
    local f
    for f in /usr/share/vulkan/icd.d/lvp_icd*.json /etc/vulkan/icd.d/lvp_icd*.json /usr/local/share/vulkan/icd.d/lvp_icd*.json; do
        if [ -e "$f" ]; then
            echo "$f"
            return
        fi
    done
}

# Indices of the GPUs as ggml counts them, one a line. The same chip seen through two drivers is listed once.
gpu_indices() {
    [ -x "$OUT/vkdevices" ] || return 0
    "$OUT/vkdevices" 2>/dev/null | awk -F'\t' '$2 == "gpu" && !seen[$3]++ { print $1 }'
}

# use_lavapipe N: N ranks on the CPU. ggml makes one VkDevice for each entry of the list, so naming device 0 N times
# gives N independent ranks on one machine. Devices that tests/layer emulates are different ones, one a rank, however many.
use_lavapipe() {
    local icd
    icd=$(lavapipe_icd)
    [ -n "$icd" ] || return 1
    export VK_DRIVER_FILES=$icd VK_ICD_FILENAMES=$icd # the second for loaders before 1.3.207
    if [ -n "${VKCOMM_LAYER_DEVICES-}" ]; then
        local commas=${VKCOMM_LAYER_DEVICES//[!,]/}
        GGML_VK_VISIBLE_DEVICES=$(seq -s, 0 "${#commas}")
    else
        GGML_VK_VISIBLE_DEVICES=$(printf '0,%.0s' $(seq "$1"))
    fi
    export GGML_VK_VISIBLE_DEVICES=${GGML_VK_VISIBLE_DEVICES%,}
}

# use_gpus N: N ranks on N different GPUs; false when there are fewer.
use_gpus() {
    local list
    list=$(gpu_indices | sed -n "1,$1p" | paste -sd,)
    [ "$(echo "$list" | tr ',' '\n' | grep -c .)" = "$1" ] || return 1
    export GGML_VK_VISIBLE_DEVICES=$list
}
