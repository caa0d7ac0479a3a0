# What the preloaded objects do to a process. Included by build/tests.cmake, which has vkcomm_test, RANKS and EXACT.

if(TARGET registry-test)
    vkcomm_test(preload-registry preload $<TARGET_FILE:registry-test>)
    vkcomm_test(preload-submit preload $<TARGET_FILE:submit-test>)
    vkcomm_test(preload-team preload $<TARGET_FILE:team-test>)
endif()
if(NOT TARGET preload-probe)
    return()
endif()

set(PROBE $<TARGET_FILE:preload-probe>)
set(PROBE_RANKS ${RANKS} lavapipe 2 env VKCOMM_TEST_LIBDIR=${VKCOMM_LLAMA_LIBDIR})
get_target_property(GOHOST gohost PROGRAM)
get_target_property(GOLIB gohost LIBRARY)

# probe_test(NAME OBJECT CASE [ARGUMENT...]); script_test(NAME SCRIPT ARGUMENT...)
function(probe_test name object)
    vkcomm_test(preload-${name} preload ${PROBE_RANKS} ${EXACT} LD_PRELOAD=${object} ${PROBE} ${ARGN})
endfunction()
function(script_test name script)
    vkcomm_test(preload-${name} preload ${PROBE_RANKS} ${CMAKE_SOURCE_DIR}/tests/preload/${script} ${ARGN})
endfunction()

# The shim, and the Go object preloaded by itself.
foreach(kind shim go)
    set(object ${SHIM})
    if(kind STREQUAL go)
        set(object ${GO_OBJECT})
    endif()
    script_test(${kind}-switched-off switched-off ${object} ${PROBE} $<TARGET_FILE:watch_layer>)
    probe_test(${kind}-exit ${object} exit)
    probe_test(${kind}-fork ${object} fork)
    probe_test(${kind}-fork-locks ${object} fork-locks)
    probe_test(${kind}-signals ${object} signals)
    probe_test(${kind}-storm ${object} storm)
    probe_test(${kind}-caller ${object} caller)
endforeach()
probe_test(shim-fork-early ${SHIM} fork-early works)
probe_test(go-fork-early ${GO_OBJECT} fork-early inert)

# Every way to end, several times: what is in flight differs from run to run.
set(ENDS_TIMES 3)
if(VKCOMM_FULL_TESTS)
    set(ENDS_TIMES 25)
endif()
script_test(ends ends ${SHIM} ${PROBE} ${ENDS_TIMES})

# What only the shim can keep away.
probe_test(exec ${SHIM} exec)
foreach(limit below used enough)
    probe_test(limit-${limit} ${SHIM} limit ${limit})
endforeach()
script_test(go-host go-host ${SHIM} ${GOHOST} ${PROBE} ${GOLIB})
script_test(siblings siblings ${SHIM} ${PROBE} $<TARGET_FILE:other_version> $<TARGET_FILE:watch_layer>)

# Input.
script_test(variables variables ${SHIM} ${PROBE})
script_test(silence silence ${SHIM} ${PROBE})
script_test(layout layout ${SHIM} ${PROBE})
probe_test(no-proxy ${SHIM} no-proxy)
