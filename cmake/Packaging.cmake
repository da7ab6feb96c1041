# What `cmake --install` puts where: the program, the library, the headers, and the package that find_package(Cohort CONFIG) reads.
include(CMakePackageConfigHelpers)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Cohort)

# An installed library finds LibTorch where it was at build time. (INSTALL_RPATH_USE_LINK_PATH would leave out a LibTorch inside the checkout's .venv.) A package
# for other machines brings its own copy of it instead (packaging/make-deb).
option(COHORT_BUNDLE_LIBTORCH "Install LibTorch's libraries beside Cohort's" OFF)
set(torch_place "${TORCH_INSTALL_PREFIX}/lib")
set(torch_place_of_program "${torch_place}")
if(COHORT_BUNDLE_LIBTORCH)
  set(torch_place "$ORIGIN/cohort")
  set(torch_place_of_program "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}/cohort")
  file(GLOB torch_libraries ${TORCH_INSTALL_PREFIX}/lib/libtorch.so ${TORCH_INSTALL_PREFIX}/lib/libtorch_cpu.so ${TORCH_INSTALL_PREFIX}/lib/libc10.so
                            ${TORCH_INSTALL_PREFIX}/lib/libtorch_global_deps.so ${TORCH_INSTALL_PREFIX}/lib/libgomp*.so*)
  install(FILES ${torch_libraries} DESTINATION ${CMAKE_INSTALL_LIBDIR}/cohort)
endif()
set_target_properties(cohort PROPERTIES INSTALL_RPATH "${torch_place}")
set_target_properties(cohort_program PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};${torch_place_of_program}")

install(TARGETS cohort EXPORT CohortTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS cohort_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

# The public face is cohort/cohort.h and what it includes, nothing else. Headers stay in their rooms, so that #include "cohort/comm/group.h" reads the same in here and
# out there.
cohort_included_headers(cohort/cohort.h public_headers)
foreach(header IN ITEMS cohort/cohort.h LISTS public_headers)
  get_filename_component(room ${header} DIRECTORY)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${room})
endforeach()
install(FILES ${PROJECT_BINARY_DIR}/generated/cohort/version.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/cohort)

install(EXPORT CohortTargets NAMESPACE Cohort:: DESTINATION ${package_folder})
configure_package_config_file(cmake/CohortConfig.cmake.in ${PROJECT_BINARY_DIR}/CohortConfig.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/CohortConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/CohortConfig.cmake ${PROJECT_BINARY_DIR}/CohortConfigVersion.cmake cmake/TorchFromPip.cmake cmake/TorchCpuHalf.cmake
        DESTINATION ${package_folder})
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

# Completion comes from the program's own table of verbs.
set(help_folder ${PROJECT_BINARY_DIR}/help)
add_custom_command(TARGET cohort_program POST_BUILD
                   COMMAND ${CMAKE_COMMAND} -E make_directory ${help_folder}
                   COMMAND cohort_program completion bash > ${help_folder}/cohort.bash
                   COMMAND cohort_program completion zsh > ${help_folder}/_cohort
                   COMMAND cohort_program completion fish > ${help_folder}/cohort.fish
                   VERBATIM COMMENT "Writing completion")
install(FILES ${help_folder}/cohort.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME cohort)
install(FILES ${help_folder}/_cohort DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES ${help_folder}/cohort.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)

# `cpack -G DEB`: the program, the library and LibTorch, for Debian 12.
set(CPACK_PACKAGE_NAME cohort)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "The Cohort authors <cohort@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Distributed training for LibTorch")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/lib ${TORCH_INSTALL_PREFIX}/lib)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "openmpi-bin, dataset-fashion-mnist")
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
include(CPack)
