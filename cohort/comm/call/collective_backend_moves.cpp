// The operations of CollectiveBackend that move data and add nothing.

#include "cohort/base/error.h"
#include "cohort/comm/call/call_arguments.h"
#include "cohort/comm/call/collective_backend.h"
#include "cohort/comm/work_memory.h"

namespace cohort {

using c10d::OpType;

CollectiveBackend::WorkPointer CollectiveBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  at::Tensor& tensor = only_tensor("broadcast", "input", tensors);
  check_root("broadcast", options.rootRank);
  auto work = make_work(OpType::BROADCAST, "cohort:broadcast", tensors, options.timeout);
  in_place(*work, Op::kBroadcast, tensor, true);
  work->call().root = static_cast<int>(options.rootRank);
  return launch(std::move(work));
}

CollectiveBackend::WorkPointer CollectiveBackend::allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  at::Tensor& input = only_tensor("all-gather", "input", inputs);
  check_list("all-gather", "output", outputs, input);
  auto work = make_work(OpType::ALLGATHER, "cohort:all_gather", outputs[0], options.timeout);
  work->call().op = Op::kAllGather;
  work->call().count = static_cast<size_t>(input.numel());
  reads(*work, plain(input), writes(*work, outputs[0]), getRank());
  return launch(std::move(work));
}

CollectiveBackend::WorkPointer CollectiveBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                                  const c10d::AllgatherOptions& options) {
  check_tensor("all-gather", "input", input);
  check_tensor("all-gather", "output", output);
  check_same_type("all-gather", input, output);
  check_elements("all-gather", "output", output, input.numel() * getSize());
  auto work = make_work(OpType::_ALLGATHER_BASE, "cohort:all_gather_into_tensor", {output}, options.timeout);
  work->call().op = Op::kAllGather;
  work->call().count = static_cast<size_t>(input.numel());
  reads(*work, plain(input), writes(*work, output), getRank());
  return launch(std::move(work));
}

CollectiveBackend::WorkPointer CollectiveBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                                      const c10d::AllgatherOptions& options) {
  // c10d's layout: outputs[rank][i] is what that rank gave as inputs[i].
  if (outputs.size() != static_cast<size_t>(getSize()))
    fail(ErrorCode::kBadInput, "all-gather: ", outputs.size(), " output lists for ", getSize(), " ranks");
  for (const Tensors& list : outputs)
    if (list.size() != inputs.size()) fail(ErrorCode::kBadInput, "all-gather: ", list.size(), " outputs for ", inputs.size(), " inputs");
  std::vector<TensorLists> lists;
  for (size_t i = 0; i < inputs.size(); ++i) {
    lists.push_back({{}});
    for (const Tensors& list : outputs) lists[i][0].push_back(list[i]);
    check_tensor("all-gather", "input", inputs[i]);
    check_list("all-gather", "output", lists[i], inputs[i]);
  }
  return together(inputs.size(), [&](size_t i) {
    Tensors one{inputs[i]};
    return allgather(lists[i], one, options);
  });
}

CollectiveBackend::WorkPointer CollectiveBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                                  const c10d::AllgatherOptions& options) {
  if (outputs.size() != inputs.size())
    fail(ErrorCode::kBadInput, "all-gather: ", outputs.size(), " outputs for ", inputs.size(), " inputs");
  return together(inputs.size(), [&](size_t i) { return _allgather_base(outputs[i], inputs[i], options); });
}

CollectiveBackend::WorkPointer CollectiveBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                                                std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  check_tensor("all-to-all", "input", input);
  check_tensor("all-to-all", "output", output);
  check_same_type("all-to-all", input, output);
  std::vector<size_t> send_counts = split_counts("input", input, input_splits, getSize());
  std::vector<size_t> receive_counts = split_counts("output", output, output_splits, getSize());
  const bool even = output_splits.empty() && input_splits.empty();
  if (even) check_elements("all-to-all", "output", output, input.numel());
  auto work = make_work(OpType::ALLTOALL_BASE, "cohort:all_to_all", {output}, options.timeout);
  Call& call = work->call();
  call.op = Op::kAllToAll;
  call.count = even ? send_counts[0] : 0;
  if (!even) {
    call.send_counts = std::move(send_counts);
    call.receive_counts = std::move(receive_counts);
  }
  reads(*work, plain(input), writes(*work, output), getRank());
  return launch(std::move(work));
}

CollectiveBackend::WorkPointer CollectiveBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  const size_t size = static_cast<size_t>(getSize());
  if (inputs.size() != size || outputs.size() != size)
    fail(ErrorCode::kBadInput, "all-to-all: ", inputs.size(), " inputs and ", outputs.size(), " outputs for ", size, " ranks");
  auto work = make_work(OpType::ALLTOALL, "cohort:all_to_all", outputs, options.timeout);
  Call& call = work->call();
  call.op = Op::kAllToAll;
  for (size_t peer = 0; peer < size; ++peer) {
    check_tensor("all-to-all", "input", inputs[peer]);
    check_tensor("all-to-all", "output", outputs[peer]);
    check_same_type("all-to-all", inputs[0], inputs[peer]);
    check_same_type("all-to-all", inputs[0], outputs[peer]);
    call.send_counts.push_back(static_cast<size_t>(inputs[peer].numel()));
    call.receive_counts.push_back(static_cast<size_t>(outputs[peer].numel()));
  }
  reads(*work, joined(inputs), writes(*work, outputs), getRank());
  return launch(std::move(work));
}

CollectiveBackend::WorkPointer CollectiveBackend::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  at::Tensor& input = only_tensor("gather", "input", inputs);
  check_root("gather", options.rootRank);
  const bool root = options.rootRank == getRank();
  if (root) check_list("gather", "output", outputs, input);
  auto work = make_work(OpType::GATHER, "cohort:gather", root ? outputs[0] : Tensors{}, options.timeout);
  work->call().op = Op::kGather;
  work->call().root = static_cast<int>(options.rootRank);
  work->call().count = static_cast<size_t>(input.numel());
  reads(*work, plain(input), root ? writes(*work, outputs[0]) : at::Tensor(), getRank());
  return launch(std::move(work));
}

CollectiveBackend::WorkPointer CollectiveBackend::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) {
  at::Tensor& output = only_tensor("scatter", "output", outputs);
  check_root("scatter", options.rootRank);
  const bool root = options.rootRank == getRank();
  if (root) check_list("scatter", "input", inputs, output);
  auto work = make_work(OpType::SCATTER, "cohort:scatter", outputs, options.timeout);
  work->call().op = Op::kScatter;
  work->call().root = static_cast<int>(options.rootRank);
  work->call().count = static_cast<size_t>(output.numel());
  const at::Tensor memory = writes(*work, output);
  if (root) reads(*work, joined(inputs[0]), memory, getRank());
  return launch(std::move(work));
}

}  // namespace cohort
