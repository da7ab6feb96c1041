# What pip's own index gives as `torch` is a CUDA build, and the package of such a LibTorch stops every project on a machine without the whole CUDA toolkit
# ("Your installed Caffe2 version uses CUDA but I cannot find the CUDA libraries"), though its CPU half is whole: libtorch_cpu and libc10.
# There this makes the target `torch` of that half, and sets what find_package(Torch) sets and we read. Included after TorchFromPip, before find_package(Torch).
# For a CPU build, and where the toolkit is found, it does nothing.
function(cohort_use_cpu_half)
  if(TARGET torch OR NOT Torch_DIR)
    return()
  endif()
  get_filename_component(prefix ${Torch_DIR}/../../.. ABSOLUTE)
  if(NOT EXISTS ${prefix}/lib/libtorch_cuda.so)
    return()
  endif()
  # Which parts of a toolkit it wants only the package itself knows, and it ends the configuration: it is tried in a project of its own, once.
  if(NOT COHORT_TRIED_TORCH STREQUAL Torch_DIR)
    set(probe ${CMAKE_BINARY_DIR}/torch_probe)
    file(WRITE ${probe}/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)\nproject(probe LANGUAGES CXX)\nfind_package(Torch REQUIRED)\n")
    set(settings)
    foreach(name Torch_DIR CMAKE_PREFIX_PATH CUDA_TOOLKIT_ROOT_DIR CUDAToolkit_ROOT CMAKE_CUDA_COMPILER)
      if(${name})
        string(REPLACE ";" "\\;" value "${${name}}")
        list(APPEND settings "-D${name}=${value}")
      endif()
    endforeach()
    execute_process(COMMAND ${CMAKE_COMMAND} -S ${probe} -B ${probe}/build --fresh -G ${CMAKE_GENERATOR} -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER} ${settings}
                    RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
    set(works FALSE)
    if(status EQUAL 0)
      set(works TRUE)
    endif()
    set(COHORT_TORCH_PACKAGE_WORKS ${works} CACHE INTERNAL "Whether find_package(Torch) ends well here")
    set(COHORT_TRIED_TORCH ${Torch_DIR} CACHE INTERNAL "The LibTorch that COHORT_TORCH_PACKAGE_WORKS speaks of")
  endif()
  if(COHORT_TORCH_PACKAGE_WORKS)
    return()
  endif()
  message(STATUS "LibTorch is a CUDA build, and the CUDA toolkit that its package wants is not here: its CPU half is used")
  message(STATUS "(for --device cuda install the toolkit and configure anew)")
  set(PACKAGE_FIND_VERSION 0)  # TorchConfigVersion compares with it.
  include(${Torch_DIR}/TorchConfigVersion.cmake)
  add_library(c10 SHARED IMPORTED GLOBAL)
  set_target_properties(c10 PROPERTIES IMPORTED_LOCATION ${prefix}/lib/libc10.so INTERFACE_INCLUDE_DIRECTORIES ${prefix}/include)
  add_library(torch SHARED IMPORTED GLOBAL)
  set_target_properties(torch PROPERTIES
    IMPORTED_LOCATION ${prefix}/lib/libtorch_cpu.so
    INTERFACE_INCLUDE_DIRECTORIES "${prefix}/include;${prefix}/include/torch/csrc/api/include"
    INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO;USE_RPC;USE_TENSORPIPE"
    INTERFACE_LINK_LIBRARIES c10)
  set(TORCH_INSTALL_PREFIX ${prefix} PARENT_SCOPE)
  set(Torch_VERSION ${PACKAGE_VERSION} PARENT_SCOPE)
  set(Torch_FOUND TRUE PARENT_SCOPE)
endfunction()
cohort_use_cpu_half()
