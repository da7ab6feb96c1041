# What pip's own index gives as `torch` is a CUDA build, and the package of such a LibTorch stops every project on a machine without the CUDA toolkit
# ("Your installed Caffe2 version uses CUDA but I cannot find the CUDA libraries"), though its CPU half is whole: libtorch_cpu and libc10.
# There this makes the target `torch` of that half, and sets what find_package(Torch) sets and we read. Included after TorchFromPip, before find_package(Torch).
# With the toolkit, and for a CPU build, it does nothing.
function(cohort_use_cpu_half)
  if(TARGET torch OR NOT Torch_DIR)
    return()
  endif()
  get_filename_component(prefix ${Torch_DIR}/../../.. ABSOLUTE)
  if(NOT EXISTS ${prefix}/lib/libtorch_cuda.so)
    return()
  endif()
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_FOUND)
    return()
  endif()
  message(STATUS "LibTorch is a CUDA build and no CUDA toolkit is here: its CPU half is used (--device cuda needs the toolkit, then a new configuration)")
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
