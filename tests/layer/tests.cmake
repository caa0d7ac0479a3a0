# A driver that fails, is slow, gets lost or is other devices than lavapipe. Included by build/tests.cmake, which has
# vkcomm_test and RANKS.

if(NOT TARGET layer-probe)
    return()
endif()

set(LAYER_PROBE $<TARGET_FILE:layer-probe>)
set(LAYER $<TARGET_FILE:fault_layer>)
set(LAYER_RANKS ${RANKS} lavapipe 2 env VKCOMM_TEST_LIBDIR=${VKCOMM_LLAMA_LIBDIR})
set(LAYER_HARNESS $<TARGET_FILE:harness> --lib-dir ${VKCOMM_LLAMA_LIBDIR} --quick)
set(LAYER_CASES --case sizes --case large --case denormal --case refusals --case order)

set(SWEEP_ALL)
if(VKCOMM_FULL_TESTS)
    set(SWEEP_ALL --full)
endif()
vkcomm_test(layer-sweep fault ${LAYER_RANKS} ${CMAKE_SOURCE_DIR}/tests/layer/sweep ${SHIM} ${LAYER_PROBE} ${LAYER} ${SWEEP_ALL})
set_tests_properties(layer-sweep PROPERTIES TIMEOUT 3600)
vkcomm_test(layer-lose fault ${LAYER_RANKS} ${CMAKE_SOURCE_DIR}/tests/layer/lose ${SHIM} ${LAYER_PROBE} ${LAYER})

# layer_run(NAME DEVICES [CASES case...] [ACCURACY accuracy] LINES pattern... [SET variable=value...]): right results on
# DEVICES, a list as VKCOMM_LAYER_DEVICES has it, with lines of the run that match the patterns.
function(layer_run name devices)
    cmake_parse_arguments(arg "" ACCURACY "CASES;LINES;SET" ${ARGN})
    string(REGEX MATCHALL "," commas "${devices}")
    list(LENGTH commas ranks)
    math(EXPR ranks "${ranks} + 1")
    set(command ${LAYER_HARNESS} --ranks ${ranks})
    if(arg_ACCURACY)
        list(APPEND command --accuracy ${arg_ACCURACY})
    endif()
    if(NOT arg_CASES)
        set(arg_CASES ${LAYER_CASES})
    endif()
    set(lines)
    foreach(line IN LISTS arg_LINES)
        list(APPEND lines --line ${line})
    endforeach()
    vkcomm_test(layer-${name} fault ${LAYER_RANKS} ${CMAKE_SOURCE_DIR}/tests/layer/profile ${LAYER} ${SHIM} right ${lines}
        VKCOMM_LAYER_DEVICES=${devices} ${arg_SET} -- ${command} ${arg_CASES})
endfunction()

# layer_declined(NAME DEVICES PATTERN VARIABLE=VALUE...): no communicator, and a line that says why.
function(layer_declined name devices pattern)
    vkcomm_test(layer-${name} fault ${LAYER_RANKS} ${CMAKE_SOURCE_DIR}/tests/layer/profile ${LAYER} ${SHIM} declined --line ${pattern}
        VKCOMM_LAYER_DEVICES=${devices} ${ARGN} -- ${LAYER_PROBE} ${LAYER})
endfunction()

# ---- what a device lacks -------------------------------------------------------------------------------------------------
layer_declined(no-external-memory-host no-external-memory-host,lavapipe "rank 0 cannot import host memory")
layer_declined(no-timeline lavapipe,no-timeline "rank 1 has no timeline semaphores")
layer_declined(few-storage-buffers few-storage-buffers,few-storage-buffers
    "binds 3 storage buffers to a kernel, 2 ranks need 4")
foreach(limit import-alignment-64k offset-alignment-256 small-storage-range)
    layer_run(${limit} ${limit},lavapipe LINES "^vkcomm_layer: the plugin is held to the device's limits")
endforeach()
# On one device the same request is granted: harness-n2-p2p.
layer_run(no-dma-buf lavapipe,lavapipe SET GGML_VK_COMM_P2P=1
    LINES "AllReduce active.*staging 16 MiB of host memory.*GGML_VK_COMM_P2P=1")
foreach(rank 0 1)
    layer_run(slow-rank${rank} lavapipe,lavapipe SET VKCOMM_LAYER_DELAY=${rank}:5
        LINES "AllReduce active.*proxy ordering" "^vkcomm_layer: device ${rank} is slow")
    layer_run(native-slow-rank${rank} nvidia,nvidia SET VKCOMM_LAYER_DELAY=${rank}:5
        LINES "AllReduce active.*native ordering" "^vkcomm_layer: device ${rank} is slow")
endforeach()

# ---- native ordering, transfer queues, dma-buf ----------------------------------------------------------------------------
set(NVIDIA_2 nvidia,nvidia)
set(NVIDIA_3 nvidia,nvidia,nvidia)
set(RADV_2 radv,radv)
set(RADV_3 radv,radv,radv)
set(EVERYTHING_2 radv+timeline-fd,radv+timeline-fd)
set(EVERYTHING_3 radv+timeline-fd,radv+timeline-fd,radv+timeline-fd)
foreach(n 2 3)
    foreach(algorithm singleshot pipeline twoshot ring)
        set(accuracy exact)
        if(algorithm STREQUAL ring)
            set(accuracy f32)
        endif()
        layer_run(native-n${n}-${algorithm} ${NVIDIA_${n}} ACCURACY ${accuracy} CASES --case sizes --case large
            SET GGML_VK_COMM_ALGO=${algorithm}:0-max
            LINES "AllReduce active.*native ordering, staging 16 MiB of host memory.*${algorithm}:0-max")
    endforeach()
    layer_run(native-n${n} ${NVIDIA_${n}} LINES "AllReduce active.*native ordering")
endforeach()
