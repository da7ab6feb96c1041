#pragma once
// c10d over Gloo from pure C++. Gloo's declarations come from Debian's libgloo-dev, its code from LibTorch: gloo.cpp is the only file that
// sees a Gloo type.

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>
#include <string_view>

#include "cohort/base/export.h"

namespace cohort {

/// A Gloo backend for `size` ranks that meet over `store`, connected and tested. `address` is the local address to talk from: "127.0.0.1"
/// for ranks on one host. Collective. Error(kEnvironment) when a rank does not come within the time-out.
///
/// The first call in a process runs a self-test: a mismatch between the declarations and the code inside LibTorch (both change with
/// versions) ends the process with exit code 4 and one line that says so, instead of a crash later.
COHORT_PROGRAM_API c10::intrusive_ptr<c10d::Backend> make_gloo(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                               const std::string& address, double timeout_seconds);

/// What an exception of c10d says: without its stack trace and without what Gloo advises, which is for readers of Gloo's source.
std::string without_advice(std::string_view what);

}  // namespace cohort
