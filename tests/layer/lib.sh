# shellcheck shell=bash
# Sourced by the scripts of tests/layer, which build/ranks starts and which get VKCOMM_TEST_LIBDIR.
. "$(dirname "${BASH_SOURCE[0]}")/../preload/lib.sh"

# The layer's own variables must not reach the tests either.
for name in "${!VKCOMM_LAYER_@}"; do unset "$name"; done

# use_layer LIBRARY: whatever is run from now on runs on the layer.
use_layer() {
    cat >"$tmp/fault.json" <<END_OF_MANIFEST
{ "file_format_version": "1.1.2",
  "layer": { "name": "VK_LAYER_VKCOMM_fault", "type": "GLOBAL", "library_path": "$1", "api_version": "1.2.0",
             "implementation_version": "1", "description": "lets a driver fail" } }
END_OF_MANIFEST
    export VK_LAYER_PATH=$tmp VK_INSTANCE_LAYERS=VK_LAYER_VKCOMM_fault
}
