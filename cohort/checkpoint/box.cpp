#include "cohort/checkpoint/box.h"

#include <algorithm>
#include <cstring>

#include "cohort/base/fail.h"
#include "cohort/base/files/safetensors.h"

namespace cohort {

int64_t Box::num_elements() const { return checked_num_elements(shape); }

std::string box_error(const Box& box, const std::vector<int64_t>& whole_shape) {
  const auto text = [&] { return concat("piece at ", shape_text(box.begin), " of shape ", shape_text(box.shape)); };
  if (box.begin.size() != whole_shape.size() || box.shape.size() != whole_shape.size()) {
    return concat(text(), " has not the ", whole_shape.size(), " dimensions of the tensor");
  }
  for (size_t d = 0; d < whole_shape.size(); ++d) {
    // A subtraction, because begin + shape could overflow.
    if (box.begin[d] < 0 || box.shape[d] < 0 || box.begin[d] > whole_shape[d] || box.shape[d] > whole_shape[d] - box.begin[d]) {
      return concat(text(), " leaves the tensor of shape ", shape_text(whole_shape));
    }
  }
  return {};
}

std::optional<Box> intersection(const Box& a, const Box& b) {
  Box common;
  for (size_t d = 0; d < a.begin.size(); ++d) {
    const int64_t begin = std::max(a.begin[d], b.begin[d]);
    const int64_t end = std::min(a.begin[d] + a.shape[d], b.begin[d] + b.shape[d]);
    if (begin >= end) return std::nullopt;
    common.begin.push_back(begin);
    common.shape.push_back(end - begin);
  }
  return common;
}

std::string cover_error(const std::vector<Box>& boxes, const std::vector<int64_t>& whole_shape) {
  std::vector<const Box*> order;
  for (const Box& box : boxes) {
    if (box.num_elements() > 0) order.push_back(&box);
  }
  const auto first_row = [](const Box* box) { return box->begin.empty() ? 0 : box->begin[0]; };
  std::sort(order.begin(), order.end(), [&](const Box* a, const Box* b) { return first_row(a) < first_row(b); });
  int64_t covered = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const int64_t last_row = order[i]->begin.empty() ? 1 : order[i]->begin[0] + order[i]->shape[0];
    for (size_t j = i + 1; j < order.size() && first_row(order[j]) < last_row; ++j) {
      if (intersection(*order[i], *order[j])) {
        return concat("pieces at ", shape_text(order[i]->begin), " and at ", shape_text(order[j]->begin), " overlap");
      }
    }
    covered += order[i]->num_elements();  // Disjoint, hence at most the tensor's size: no overflow.
  }
  const int64_t expected = checked_num_elements(whole_shape);
  if (covered != expected) return concat("the pieces hold ", covered, " of ", expected, " elements");
  return {};
}

void copy_box(const Box& part, const BoxSource& source, const BoxTarget& target, int64_t element_bytes) {
  const size_t dimensions = part.shape.size();
  if (part.num_elements() == 0) return;
  // Byte strides of the two arrays, and the offsets at which the part begins in them.
  std::vector<int64_t> source_stride(dimensions), target_stride(dimensions);
  int64_t source_step = element_bytes, target_step = element_bytes, source_offset = 0, target_offset = 0;
  for (size_t d = dimensions; d-- > 0;) {
    source_stride[d] = source_step;
    target_stride[d] = target_step;
    source_offset += (part.begin[d] - source.box.begin[d]) * source_step;
    target_offset += (part.begin[d] - target.box.begin[d]) * target_step;
    source_step *= source.box.shape[d];
    target_step *= target.box.shape[d];
  }
  // The innermost dimensions that `part` covers in both arrays, and the next one, form one contiguous run.
  size_t outer = dimensions;
  int64_t run_bytes = element_bytes;
  while (outer > 0) {
    --outer;
    run_bytes *= part.shape[outer];
    if (part.shape[outer] != source.box.shape[outer] || part.shape[outer] != target.box.shape[outer]) break;
  }
  std::vector<int64_t> index(outer, 0);
  while (true) {
    std::memcpy(static_cast<std::byte*>(target.data) + target_offset, static_cast<const std::byte*>(source.data) + source_offset,
                static_cast<size_t>(run_bytes));
    size_t d = outer;
    while (d > 0) {
      --d;
      source_offset += source_stride[d];
      target_offset += target_stride[d];
      if (++index[d] < part.shape[d]) break;
      source_offset -= index[d] * source_stride[d];
      target_offset -= index[d] * target_stride[d];
      index[d] = 0;
      if (d == 0) return;
    }
    if (outer == 0) return;
  }
}

// A flat range of a row-major tensor as boxes: along the first dimension it is the end of a row, whole rows, and the beginning of a row
// (each may be missing). Whole rows are a box; the others are ranges of a tensor with one dimension less, of which only one side recurses.
// So each dimension but the last adds at most two boxes: 2N - 1 in all.

namespace {

class Decomposition {
 public:
  explicit Decomposition(const std::vector<int64_t>& shape) : shape_(shape), row_elements_(shape.size(), 1) {
    for (size_t d = shape.size(); d-- > 1;) row_elements_[d - 1] = row_elements_[d] * shape[d];
  }

  /// Adds the non-empty range [begin, end) of the subtensor at index_.
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

  /// Adds the whole rows [first, last) of the dimension after index_; a scalar has one element.
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
  std::vector<int64_t> row_elements_;  ///< Elements of a row, by dimension.
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
