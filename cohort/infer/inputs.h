#pragma once
// What a user brings to be predicted, as the training would have made samples of it. Torch-free.
//
//   trained on   an INPUT is                                                    "-": standard input has
//   pictures     a PNG or JPEG file, or an IDX file of many                     names of such files, one a line
//   rows         a CSV file with a header                                       the same
//   text         the text itself: the byte after it is predicted                one text a line
//   tensors      an NPY file of one sample or many                              one sample a line, numbers with commas or blanks between

#include <cstdint>
#include <functional>
#include <istream>
#include <string>
#include <vector>

#include "cohort/data/encode_input.h"

namespace cohort {

struct NamedInput {
  std::string name;  ///< "a.png", "rows.csv:7" (the line), "digits.npy:3" (from 0).
  EncodedInput encoded;
  int64_t num_bytes = 0;  ///< Of text: how many of the tokens it is.
};

/// One input after another. One thread; `description` and `standard_input` must outlive it.
class InputStream {
 public:
  InputStream(const DataDescription& description, std::vector<std::string> words, std::istream& standard_input);

  /// False at the end. Error(kBadInput) that names file and row or place for what is missing, damaged, or of another kind than the training
  /// had.
  bool next(NamedInput& input);

 private:
  using Source = std::function<bool(NamedInput&)>;
  Source open(const std::string& word);
  Source picture(const std::string& path) const;
  Source pictures_of_idx(const std::string& path) const;
  Source rows(const std::string& path);
  Source text(const std::string& word) const;
  Source tensors(const std::string& path) const;
  Source lines(const std::function<Source(const std::string& line, const std::string& name)>& source_of_line);
  Source numbers_of_line(const std::string& line, const std::string& name) const;

  const DataDescription& description_;
  std::vector<std::string> words_;
  std::istream& standard_input_;
  size_t next_word_ = 0;
  Source source_;
};

}  // namespace cohort
