# A driver that fails, is slow, gets lost or looks like another one. Included by build/tests.cmake, which has vkcomm_test and
# RANKS.

if(NOT TARGET layer-probe)
    return()
endif()

set(LAYER_PROBE $<TARGET_FILE:layer-probe>)
set(LAYER $<TARGET_FILE:fault_layer>)
set(LAYER_RANKS ${RANKS} lavapipe 2 env VKCOMM_TEST_LIBDIR=${VKCOMM_LLAMA_LIBDIR})
set(LAYER_HARNESS $<TARGET_FILE:harness> --lib-dir ${VKCOMM_LLAMA_LIBDIR} --ranks 2 --quick
    --case sizes --case large --case denormal --case refusals --case order)

set(SWEEP_ALL)
if(VKCOMM_FULL_TESTS)
    set(SWEEP_ALL --full)
endif()
vkcomm_test(layer-sweep fault ${LAYER_RANKS} ${CMAKE_SOURCE_DIR}/tests/layer/sweep ${SHIM} ${LAYER_PROBE} ${LAYER} ${SWEEP_ALL})
set_tests_properties(layer-sweep PROPERTIES TIMEOUT 3600)
vkcomm_test(layer-lose fault ${LAYER_RANKS} ${CMAKE_SOURCE_DIR}/tests/layer/lose ${SHIM} ${LAYER_PROBE} ${LAYER})

# layer_right(NAME PATTERN VARIABLE=VALUE...), layer_declined(the same): see tests/layer/profile.
function(layer_right name pattern)
    vkcomm_test(layer-${name} fault ${LAYER_RANKS} ${CMAKE_SOURCE_DIR}/tests/layer/profile ${LAYER} ${SHIM} right ${pattern}
        ${ARGN} -- ${LAYER_HARNESS})
endfunction()
function(layer_declined name pattern)
    vkcomm_test(layer-${name} fault ${LAYER_RANKS} ${CMAKE_SOURCE_DIR}/tests/layer/profile ${LAYER} ${SHIM} declined ${pattern}
        ${ARGN} -- ${LAYER_PROBE} ${LAYER})
endfunction()

layer_declined(no-external-memory-host "cannot import host memory" VKCOMM_LAYER_PROFILE=no-external-memory-host)
layer_declined(no-timeline "has no timeline semaphores" VKCOMM_LAYER_PROFILE=no-timeline)
layer_declined(few-storage-buffers "binds 3 storage buffers to a kernel, 2 ranks need 4" VKCOMM_LAYER_PROFILE=few-storage-buffers)
foreach(limit import-alignment-64k offset-alignment-256 small-storage-range)
    layer_right(${limit} "^vkcomm_layer: the plugin is held to the profile" VKCOMM_LAYER_PROFILE=${limit})
endforeach()
# On lavapipe as it is, the same request is granted: harness-n2-p2p.
foreach(difference mixed-drivers distinct-uuids)
    layer_right(${difference} "AllReduce active.*staging 16 MiB of host memory.*GGML_VK_COMM_P2P=1"
        VKCOMM_LAYER_PROFILE=${difference} GGML_VK_COMM_P2P=1)
endforeach()
foreach(rank 0 1)
    layer_right(slow-rank${rank} "^vkcomm_layer: device ${rank} is slow" VKCOMM_LAYER_DELAY=${rank}:5)
endforeach()
