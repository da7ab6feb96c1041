# Finds LibTorch where CMake does not look by itself: inside a Python that has the wheel `torch`. In this order:
#   1. Torch_DIR or a CMAKE_PREFIX_PATH that has it: nothing to do;
#   2. COHORT_TORCH_PREFIX, the folder of a LibTorch;
#   3. the virtual environment of the checkout (or of the project that includes this file);
#   4. the LibTorch that an installed Cohort was built with, where it still is;
#   5. python3 of the path.
# Python is asked where torch lies without importing it, which would take seconds. Sets Torch_DIR; find_package(Torch) says so when all fail.
set(COHORT_TORCH_PREFIX "" CACHE PATH "Folder of a LibTorch (with include, lib, share); empty: looked for in Python environments")

function(cohort_find_torch)
  if(COHORT_TORCH_PREFIX)
    set(Torch_DIR ${COHORT_TORCH_PREFIX}/share/cmake/Torch CACHE PATH "Where TorchConfig.cmake is" FORCE)
    return()
  endif()
  if(Torch_DIR OR Torch_ROOT OR TARGET torch)
    return()
  endif()
  foreach(prefix IN LISTS CMAKE_PREFIX_PATH)
    if(EXISTS ${prefix}/share/cmake/Torch/TorchConfig.cmake OR EXISTS ${prefix}/Torch/TorchConfig.cmake)
      return()
    endif()
  endforeach()
  set(ask "import importlib.util as u, os; s = u.find_spec('torch'); print(os.path.dirname(s.origin)) if s else exit(1)")
  foreach(candidate ${CMAKE_SOURCE_DIR}/.venv/bin/python ${PROJECT_SOURCE_DIR}/.venv/bin/python "prefix" python3)
    if(candidate STREQUAL "prefix")
      set(prefix "${COHORT_BUILT_WITH_TORCH_PREFIX}")
    else()
      execute_process(COMMAND ${candidate} -c "${ask}" OUTPUT_VARIABLE prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
      if(NOT status EQUAL 0)
        continue()
      endif()
    endif()
    if(prefix AND EXISTS ${prefix}/share/cmake/Torch/TorchConfig.cmake)
      set(Torch_DIR ${prefix}/share/cmake/Torch CACHE PATH "Where TorchConfig.cmake is")
      message(STATUS "LibTorch: ${prefix}")
      return()
    endif()
  endforeach()
endfunction()
cohort_find_torch()
