#pragma once
// A model whose tensors several servers divide (sync=async:servers=S), as the first of them has it: rank 0's.

#include <memory>
#include <string>
#include <vector>

#include "cohort/train/async/async_mode.h"
#include "cohort/train/async/gradient_server.h"

namespace cohort {

/// One thread. What is pulled and pushed is server 0's part; the others' are of the moment at which they were last taken over.
class DividedServer : public AsyncMode {
 public:
  /// `options.part` says how many, each of which has something (check_servers()).
  DividedServer(const torch::nn::Module& module, const GradientServerOptions& options);

  size_t num_servers() const { return parts_.size(); }
  /// Server 0 is the one that is pulled from and pushed to here; the others are room for what their processes have.
  GradientServer& part(size_t server) const { return *parts_[server]; }

  void pull(Work& work, const StepNumbers& numbers) override { own().pull(work, numbers); }
  void worked(Work& work, TicketResult result, const StepNumbers& numbers) override { own().worked(work, std::move(result), numbers); }
  PushOutcome push(Work& work, const StepNumbers& numbers) override { return own().push(work, numbers); }
  std::vector<at::Tensor> served() const override { return own().served(); }
  void handed_out(Work& work) override { own().handed_out(work); }
  void show() override {}

  int64_t version() const override { return own().version(); }
  /// Of all servers.
  int64_t pull_bytes() const override;
  int64_t push_bytes() const override;
  int64_t bytes_in_flight() const override;

  /// Of all: "parts" in the state has that of the others.
  std::vector<FlatPiece> saved_pieces() override;
  Json state() const override;
  std::vector<FlatPiece> loaded_pieces(const Json& state, const std::string& where) override;
  void loaded(const Json& state) override;
  std::vector<at::Tensor> empty_handed_over() const override { return own().empty_handed_over(); }
  size_t num_optional() const override { return own().num_optional(); }
  std::vector<at::Tensor> empty_work() const override { return own().empty_work(); }

 private:
  GradientServer& own() const { return *parts_[0]; }
  template <typename Count>
  int64_t sum(const Count& count) const;

  std::vector<std::unique_ptr<GradientServer>> parts_;
};

}  // namespace cohort
