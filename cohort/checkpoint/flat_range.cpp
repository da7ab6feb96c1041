// A flat range of a row-major tensor as boxes.
//
// Seen as rows of the first dimension, a range is the end of one row, then whole rows, then the beginning of one row (each may be missing).
// Whole rows are a box; the two others are ranges of a tensor with one dimension less. The end of a row has no such beginning of its own
// and the other way round, so each dimension but the last adds at most two boxes: 2N - 1 in all.
#include "cohort/checkpoint/flat_range.h"

#include "cohort/base/fail.h"

namespace cohort {
namespace {

class Decomposition {
 public:
  explicit Decomposition(const std::vector<int64_t>& shape) : shape_(shape), row_elements_(shape.size(), 1) {
    for (size_t d = shape.size(); d-- > 1;) row_elements_[d - 1] = row_elements_[d] * shape[d];
  }

  /// Adds [begin, end), not empty, of the part of the tensor whose first coordinates are index_.
  void add(int64_t begin, int64_t end) {
    if (index_.size() == shape_.size()) return add_rows(0, 1);
    const int64_t row = row_elements_[index_.size()];
    int64_t first = begin / row;
    const int64_t last = end / row;
    if (begin % row != 0) {
      const bool ends_there = first == last;
      add_inside(first, begin % row, ends_there ? end % row : row);
      if (ends_there) return;
      ++first;
    }
    if (first < last) add_rows(first, last);
    if (end % row != 0) add_inside(last, 0, end % row);
  }

  std::vector<Box> boxes;

 private:
  void add_inside(int64_t row, int64_t begin, int64_t end) {
    index_.push_back(row);
    add(begin, end);
    index_.pop_back();
  }

  /// Rows [first, last) of the dimension after index_, whole; a scalar has the one element.
  void add_rows(int64_t first, int64_t last) {
    Box box{index_, std::vector<int64_t>(index_.size(), 1)};
    for (size_t d = index_.size(); d < shape_.size(); ++d) {
      const bool rows = d == index_.size();
      box.begin.push_back(rows ? first : 0);
      box.shape.push_back(rows ? last - first : shape_[d]);
    }
    boxes.push_back(std::move(box));
  }

  const std::vector<int64_t>& shape_;
  std::vector<int64_t> row_elements_;  ///< By dimension: elements of one row of it.
  std::vector<int64_t> index_;
};

}  // namespace

std::vector<Box> boxes_of_range(const std::vector<int64_t>& shape, int64_t begin, int64_t end) {
  const int64_t num_elements = checked_num_elements(shape);
  if (begin < 0 || begin > end || end > num_elements) {
    fail(ErrorCode::kBadInput, "elements ", begin, " to ", end, " leave the tensor of shape ", shape_text(shape));
  }
  if (begin == end) return {};
  Decomposition decomposition(shape);
  decomposition.add(begin, end);
  return std::move(decomposition.boxes);
}

std::vector<TensorPiece> pieces_of_range(const TensorView& whole, int64_t begin, int64_t end) {
  std::vector<Box> boxes = boxes_of_range(whole.shape, begin, end);
  if (whole.num_elements() == 0) boxes.push_back({std::vector<int64_t>(whole.shape.size(), 0), whole.shape});
  std::vector<TensorPiece> pieces;
  const std::byte* data = static_cast<const std::byte*>(whole.data);
  for (Box& box : boxes) {
    const int64_t num_bytes = box.num_elements() * dtype_bytes(whole.dtype);
    pieces.push_back({{whole.name, whole.dtype, std::move(box.shape), data}, whole.shape, std::move(box.begin)});
    if (num_bytes > 0) data += num_bytes;
  }
  return pieces;
}

}  // namespace cohort
