#pragma once
// Which tensors of a checkpoint the optimizer's state of this run goes on from. With local steps each data-parallel worker has a state of
// its own (parallel/local/fragments.h); every other layout has one, and so has a run with another number of workers. Torch-free.

#include <set>
#include <string>
#include <vector>

namespace cohort {

/// A value.
class StateSources {
 public:
  /// `tensors`: the names that the checkpoint has; `num_workers`: data-parallel workers of this run.
  StateSources(const std::vector<std::string>& tensors, int num_workers)
      : tensors_(tensors.begin(), tensors.end()), num_workers_(num_workers) {}

  /// Of the piece `name` of this run:
  ///   one name     its values are that tensor's: its own, or where the checkpoint has one state for all workers, that one;
  ///   several      its values are their mean: the states of the workers of another layout;
  ///   none         an outer momentum that the checkpoint lacks: it begins at zero; with fragments a worker's own weights where the
  ///                checkpoint has none, or those of another number of workers.
  /// A name that the checkpoint lacks comes back as it is, for the reader to refuse.
  std::vector<std::string> of(const std::string& name) const;
  /// The checkpoint's workers that have a state of their own; 0: there is one for all.
  int num_states() const;

 private:
  std::vector<std::string> of_workers(const std::string& name) const;

  std::set<std::string> tensors_;
  int num_workers_;
};

}  // namespace cohort
