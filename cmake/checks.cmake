# Targets that look at the sources: `format` rewrites them, `format-check` and `lint` fail on what
# is wrong. All need the versions of Debian 12, since clang-format's output changes between
# versions.
find_program(CLANG_FORMAT NAMES clang-format-14)
find_program(RUN_CLANG_TIDY NAMES run-clang-tidy-14)
find_program(CLANG_TIDY NAMES clang-tidy-14)

file(GLOB_RECURSE our_sources CONFIGURE_DEPENDS
  ${CMAKE_SOURCE_DIR}/common/*.h ${CMAKE_SOURCE_DIR}/common/*.cc
  ${CMAKE_SOURCE_DIR}/kernels/*.h ${CMAKE_SOURCE_DIR}/kernels/*.cc
  ${CMAKE_SOURCE_DIR}/kernels/*.cuh ${CMAKE_SOURCE_DIR}/kernels/*.cu
  ${CMAKE_SOURCE_DIR}/decoder/*.h ${CMAKE_SOURCE_DIR}/decoder/*.cc
  ${CMAKE_SOURCE_DIR}/verifier/*.h ${CMAKE_SOURCE_DIR}/verifier/*.cc
  ${CMAKE_SOURCE_DIR}/tests/*.h ${CMAKE_SOURCE_DIR}/tests/*.cc
  ${CMAKE_SOURCE_DIR}/bench/*.h ${CMAKE_SOURCE_DIR}/bench/*.cc)

if(CLANG_FORMAT)
  add_custom_target(format COMMAND ${CLANG_FORMAT} -i ${our_sources} VERBATIM)
  add_custom_target(format-check COMMAND ${CLANG_FORMAT} --dry-run --Werror ${our_sources} VERBATIM)
endif()

# Every source that is part of this build, the product's and not the tests'. Generated headers must
# be there first.
if(RUN_CLANG_TIDY AND CLANG_TIDY)
  add_custom_target(lint
    COMMAND ${RUN_CLANG_TIDY} -clang-tidy-binary ${CLANG_TIDY} -p ${CMAKE_BINARY_DIR} -quiet
            "^${CMAKE_SOURCE_DIR}/(common|kernels|decoder|verifier)/"
    VERBATIM)
endif()
