# shellcheck shell=bash
# Sourced after lib.sh: models, and runs of the unmodified llama.cpp with and without the plugin. Used by build/demo and
# build/host-compare.

SHIM=$OUT/libggml-vk-comm-preload.so
LLAMA_LIBDIR=${VKCOMM_LLAMA_LIBDIR:-$OUT/deps/llama}
PROGRAMS=$OUT/tests
STOCK_TRIES=3 # stock llama.cpp now and then corrupts its own memory on lavapipe

# make_model SIZE: prints the path of a model with random weights, made once.
make_model() {
    local file=$OUT/models/$1.gguf shape
    case $1 in
        tiny) shape=(--n-embd 256 --n-layer 2) ;;                       # 8 MB
        twelve) shape=(--n-embd 384 --n-layer 2 --n-head 12) ;;         # 17 MB: splits evenly over 3 ranks
        moe) shape=(--n-embd 256 --n-layer 2 --n-expert 4 --n-ff 512) ;; # 16 MB: a mixture of experts
        text) shape=(--n-embd 256 --n-layer 2 --vocab text) ;;         # 8 MB: with a vocabulary
        small) shape=(--n-embd 512 --n-layer 4) ;;                      # 59 MB
        large) shape=(--n-embd 4096 --n-layer 16 --n-head 32 --type f16) ;; # 6.6 GB: for GPUs
        *) die "model size is '$1', accepted: tiny, twelve, moe, text, small, large" ;;
    esac
    if [ ! -e "$file" ]; then
        say "making the $1 model"
        mkdir -p "$OUT/models"
        "$PROGRAMS/make-gguf" "${shape[@]}" --out "$file.new" >&2 || die "make-gguf failed for the $1 model"
        mv "$file.new" "$file"
    fi
    echo "$file"
}

# run_llama WHERE RANKS NAME TRIES ENVIRONMENT... -- ARGUMENT...: one llama-run; leaves NAME.json (its line), NAME.log
# (stderr) and NAME.logits. A run that dies of a signal is repeated, TRIES in all, and says so each time. RETRIED is then the
# number of repetitions.
run_llama() {
    local where=$1 ranks=$2 name=$3 tries=$4 environment=() status
    shift 4
    while [ "$1" != -- ]; do
        environment+=("$1")
        shift
    done
    shift
    RETRIED=0
    while :; do
        status=0
        "$ROOT/build/ranks" "$where" "$ranks" env "${environment[@]}" "$PROGRAMS/llama-run" --json --lib-dir "$LLAMA_LIBDIR" \
            --logits "$name.logits" "$@" >"$name.json" 2>"$name.log" || status=$?
        if [ "$status" = 0 ] || [ "$status" = "$SKIP" ]; then
            return "$status"
        fi
        if [ "$status" -lt 128 ] || [ $((RETRIED + 1)) -ge "$tries" ]; then
            tail -n 20 "$name.log" >&2
            say "llama-run (${name##*/}) failed with status $status after $((RETRIED + 1)) of $tries tries; its log is $name.log"
            return 1
        fi
        RETRIED=$((RETRIED + 1))
        say "llama-run (${name##*/}) died of signal $((status - 128)); try $((RETRIED + 1)) of $tries"
    done
}

# number NAME KEY: a number from llama-run's JSON line.
number() { sed -n 's/.*"'"$2"'": *\([-0-9.eE+]*\).*/\1/p' "$1.json"; }

# active_lines NAME: from a run's log, the plugin's line that it is in use and the one that counts its reductions (with
# GGML_VK_COMM_STATS=1). Fails unless both are there and the count is above 0: a refusal is logged too, so that any line will
# not do.
active_lines() {
    grep '^ggml_vk_comm: AllReduce active' "$1.log" && grep '^ggml_vk_comm: stats: [1-9][0-9]* reductions' "$1.log"
}
