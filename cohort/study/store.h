#pragma once
// A study on disk: DIR/study.db, one SQLite file that a kill at any instant leaves whole. Tables: docs/formats/study.md.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/study/data.h"
#include "cohort/study/spec.h"

namespace cohort::study {

/// One process at a time writes (a second one gets Error(kBadInput) that names the first's pid); any number read. One thread.
class Store {
 public:
  /// Opens or makes DIR/study.db for this spec and writes DIR/study.toml. Error(kBadInput) where DIR holds another study
  /// (explain_difference), a file that is no study, or a store of a later version. A store of the same study is gone on with.
  static Store open(const std::string& folder, const StudySpec& spec);
  /// Reads only; Error(kBadInput) where there is none.
  static Store open_readonly(const std::string& folder);
  Store(Store&&) noexcept;
  ~Store();

  StudySpec spec() const;
  /// Writes an ended trial with all its measurements in one transaction. Error(kFailed) when it is there already: nothing is run twice.
  void add(int64_t batch_size, const Trial& trial);
  /// Ended trials of a batch size without measurements, ids rising.
  std::vector<Trial> trials(int64_t batch_size) const;
  /// Everything, measurements included.
  StudyData read() const;
  /// Named values that later steps keep beside the trials (measured step times, noise scales): JSON text.
  void set_note(const std::string& name, const std::string& text);
  std::optional<std::string> note(const std::string& name) const;

 private:
  struct State;
  explicit Store(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// DIR as StudyData: a folder with study.db, or an archive's (archive.h). Error(kBadInput) where it is neither.
StudyData read_study(const std::string& folder);

}  // namespace cohort::study
