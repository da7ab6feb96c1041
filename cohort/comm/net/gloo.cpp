#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO 1
#endif
#include "cohort/comm/net/gloo.h"

#include <ATen/ops/full.h>
#include <torch/version.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <mutex>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/failure/crash_guard.h"

namespace cohort {
namespace {

c10::intrusive_ptr<c10d::ProcessGroupGloo> connect(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const std::string& address,
                                                   double timeout_seconds) {
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1e3)));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
  options->threads = 1;
  return c10::make_intrusive<c10d::ProcessGroupGloo>(std::move(store), rank, size, std::move(options));
}

/// A world of one rank runs each collective that Cohort uses: enough to cross every virtual table and structure that the declarations
/// describe.
void self_test() {
  const std::string line = name_settings("the Gloo inside LibTorch " TORCH_VERSION
                                         " does not fit the declarations that Cohort was built with (package libgloo-dev): rebuild "
                                         "Cohort against this LibTorch, or report the two versions; until then train with --workers 1");
  const CrashGuard guard(line.c_str());
  auto group = connect(c10::make_intrusive<c10d::HashStore>(), 0, 1, "127.0.0.1", 10);
  std::vector<at::Tensor> tensors{at::full({8}, 3.0f, at::kFloat)};
  group->allreduce(tensors)->wait();
  group->broadcast(tensors)->wait();
  group->barrier()->wait();
  if (group->getRank() != 0 || group->getSize() != 1 || tensors[0].sum().item<float>() != 24.0f) fail(ErrorCode::kEnvironment, line);
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const std::string& address,
                                            double timeout_seconds) {
  static std::once_flag tested;
  std::call_once(tested, self_test);
  return connect(std::move(store), rank, size, address, timeout_seconds);
}

std::string without_advice(std::string_view what) {
  std::string text = first_line(what);
  for (const char* advice : {". This may indicate", ". This is typically caused"}) text = text.substr(0, text.find(advice));
  return text;
}

}  // namespace cohort
