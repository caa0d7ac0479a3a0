# Hosts other than our test programs on the pinned llama.cpp. Included by build/tests.cmake, which has vkcomm_test. What they
# run on is fetched by the tests themselves.

if(NOT TARGET llama-run OR NOT TARGET make-gguf)
    return()
endif()

# hosts_release(NAME TAG WHAT PROGRAM): tests/hosts/release, with the sources that PROGRAM is made of here.
function(hosts_release name tag what program)
    get_target_property(sources ${program} SOURCES)
    get_target_property(directory ${program} SOURCE_DIR)
    list(TRANSFORM sources PREPEND ${directory}/)
    vkcomm_test(${name} host ${CMAKE_SOURCE_DIR}/tests/hosts/release ${tag} ${what} ${sources})
endfunction()

# hosts_script(NAME SCRIPT ARGUMENT...)
function(hosts_script name script)
    vkcomm_test(${name} host ${CMAKE_SOURCE_DIR}/tests/hosts/${script} ${ARGN})
endfunction()

# The one to which everything else is pinned.
hosts_script(host-node node v0.5.0 layer)
hosts_script(host-node-tensor node v0.5.0 tensor)
hosts_script(host-ffi ffi v0.5.0)

# The oldest that has communicators, and the last before them; between that and the pinned one with --full.
hosts_release(host-release-b8390 b8390 inert llama-run)
hosts_release(abi-release-b8390 b8390 abi abi)
set(RELEASES b10068)
if(VKCOMM_FULL_TESTS)
    list(APPEND RELEASES b10361 v0.4.0 v0.5.0)
    hosts_script(host-node-b8390 node b8390 layer)
endif()
foreach(tag ${RELEASES})
    hosts_release(host-release-${tag} ${tag} active llama-run)
    hosts_release(abi-release-${tag} ${tag} abi abi)
    if(VKCOMM_FULL_TESTS)
        hosts_release(harness-release-${tag} ${tag} harness harness)
    endif()
    if(VKCOMM_FULL_TESTS AND NOT tag STREQUAL v0.5.0)
        hosts_script(host-node-${tag} node ${tag} layer)
        hosts_script(host-node-tensor-${tag} node ${tag} tensor)
        hosts_script(host-ffi-${tag} ffi ${tag})
    endif()
endforeach()
