#include "cohort/comm/ordered_sum.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <vector>

namespace cohort {

OrderedSum::OrderedSum(c10d::Backend& backend, at::Tensor flat)
    : backend_(backend), flat_(std::move(flat)), small_(flat_.nbytes() <= static_cast<size_t>(kSmallBytes)) {
  const int64_t num_ranks = backend.getSize(), count = flat_.numel();
  const int64_t slice = (count + num_ranks - 1) / num_ranks;
  if (small_) {
    padded_ = flat_;
    received_ = at::empty({num_ranks, count}, flat_.options());
    at::Tensor output = received_.view({-1});
    work_ = backend._allgather_base(output, padded_);
    return;
  }
  if (slice * num_ranks == count) {
    padded_ = flat_;
  } else {
    padded_ = at::zeros({slice * num_ranks}, flat_.options());
    padded_.narrow(0, 0, count).copy_(flat_);
  }
  received_ = at::empty({num_ranks, slice}, flat_.options());
  at::Tensor output = received_.view({-1});
  std::vector<int64_t> equal_splits;
  work_ = backend.alltoall_base(output, padded_, equal_splits, equal_splits);
}

void OrderedSum::add_received(at::Tensor sum) const {
  at::add_out(sum, received_[0], received_[1]);
  for (int64_t rank = 2; rank < received_.size(0); ++rank) sum.add_(received_[rank]);
}

void OrderedSum::wait() {
  work_->wait();
  if (small_) {
    add_received(flat_);
    return;
  }
  at::Tensor sum = at::empty_like(received_[0]);
  add_received(sum);
  backend_._allgather_base(padded_, sum)->wait();
  if (!padded_.is_same(flat_)) flat_.copy_(padded_.narrow(0, 0, flat_.numel()));
}

}  // namespace cohort
