# What `cmake --install` puts where: the program, the library, the headers, and the package that find_package(Cohort CONFIG) reads.
include(CMakePackageConfigHelpers)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Cohort)

# An installed library finds LibTorch where it was at build time. (INSTALL_RPATH_USE_LINK_PATH would leave out a LibTorch inside the checkout's .venv.)
set_target_properties(cohort PROPERTIES INSTALL_RPATH "${TORCH_INSTALL_PREFIX}/lib")
set_target_properties(cohort_program PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};${TORCH_INSTALL_PREFIX}/lib")

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
