# Programs of llama.cpp's own under the preload, label client. Included by build/tests.cmake, which has vkcomm_test, RANKS and
# KEEP, for --full only: they take long, and to build them takes longer.

vkcomm_test(client-build client ${BUILD}/clients)
set_tests_properties(client-build PROPERTIES FIXTURES_SETUP clients TIMEOUT 7200)

# client_test(NAME COMMAND...)
function(client_test name)
    vkcomm_test(client-${name} client ${ARGN})
    set_tests_properties(client-${name} PROPERTIES FIXTURES_REQUIRED clients)
endfunction()

get_target_property(DRIVE drive PROGRAM)
foreach(case long-prompts slots draft embeddings sleep signals router router-kills)
    client_test(server-${case} ${RANKS} lavapipe 2 ${KEEP} ${CMAKE_SOURCE_DIR}/tests/clients/server ${DRIVE} ${SHIM} ${case})
endforeach()
set_tests_properties(client-server-long-prompts PROPERTIES TIMEOUT 1800)
client_test(bench ${RANKS} lavapipe 2 ${KEEP} ${CMAKE_SOURCE_DIR}/tests/clients/bench ${VKCOMM})
client_test(bench-uneven ${RANKS} lavapipe 2 ${KEEP} ${CMAKE_SOURCE_DIR}/tests/clients/bench ${VKCOMM} -ts 3/1)
foreach(n 2 3)
    client_test(archs-n${n} ${RANKS} lavapipe ${n} ${KEEP} ${CMAKE_SOURCE_DIR}/tests/clients/archs ${SHIM} $<TARGET_FILE:load_backends>)
    set_tests_properties(client-archs-n${n} PROPERTIES TIMEOUT 14400)
endforeach()
