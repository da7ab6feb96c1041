// NPY (NumPy Enhancement Proposal 1): bytes 0x93 "NUMPY", version (1.0, 2.0 or 3.0), the header's length in 2 or 4 bytes, a header such as
//   {'descr': '<f4', 'fortran_order': False, 'shape': (10, 3), }
// filled up with blanks, a line feed, the data. Nothing of Python is evaluated: the three keys are read by the grammar that NumPy writes,
// in any order.

#include "cohort/data/tensors/npy.h"

#include <cstring>
#include <string_view>

#include "cohort/base/fail.h"
#include "cohort/base/files/byte_reader.h"
#include "cohort/base/text/text.h"

namespace cohort {

namespace {

constexpr int64_t kMaxHeaderBytes = 1 << 16;
constexpr size_t kMaxDimensions = 16;

struct Type {
  const char* name;
  DType dtype;
};
constexpr Type kTypes[] = {{"<f4", DType::kF32}, {"<f8", DType::kF64}, {"<f2", DType::kF16}, {"|u1", DType::kU8},  {"|i1", DType::kI8},
                           {"<i2", DType::kI16}, {"<i4", DType::kI32}, {"<i8", DType::kI64}, {"|b1", DType::kBool}};

/// The header's text, piece by piece.
class Header {
 public:
  Header(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  NpyArray read() {
    NpyArray array;
    bool has_type = false, has_order = false, has_shape = false;
    expect('{');
    while (!take('}')) {
      const std::string key = text();
      expect(':');
      if (key == "descr") {
        array.dtype = type_of(text());
        has_type = true;
      } else if (key == "fortran_order") {
        if (word() != "False") refuse("is in Fortran's order; save numpy.ascontiguousarray(x)");
        has_order = true;
      } else if (key == "shape") {
        array.shape = shape();
        has_shape = true;
      } else {
        refuse("has a header with the key '", printable(key), "'");
      }
      take(',');
    }
    blanks();
    if (at_ != text_.size() || !has_type || !has_order || !has_shape) refuse("has no header with descr, fortran_order and shape");
    return array;
  }

 private:
  template <typename... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail(ErrorCode::kBadInput, path_, " ", parts...);
  }
  void blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool take(char wanted) {
    blanks();
    if (at_ == text_.size()) refuse("has a header that ends too early");
    if (text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!take(wanted)) refuse("has a header with '", printable(text_.substr(at_, 1)), "' where '", wanted, "' belongs");
  }
  std::string text() {
    expect('\'');
    const size_t end = text_.find('\'', at_);
    if (end == std::string_view::npos) refuse("has a header that ends too early");
    const std::string out(text_.substr(at_, end - at_));
    at_ = end + 1;
    return out;
  }
  std::string word() {
    blanks();
    const size_t begin = at_;
    while (at_ < text_.size() && ((text_[at_] >= 'a' && text_[at_] <= 'z') || (text_[at_] >= 'A' && text_[at_] <= 'Z'))) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }
  std::vector<int64_t> shape() {
    std::vector<int64_t> sizes;
    expect('(');
    while (!take(')')) {
      const size_t begin = at_;
      while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
      const auto size = parse_integer(text_.substr(begin, at_ - begin));
      if (!size || sizes.size() == kMaxDimensions) refuse("has a header with a shape that is none");
      sizes.push_back(*size);
      take(',');
    }
    return sizes;
  }
  DType type_of(const std::string& name) const {
    for (const Type& type : kTypes)
      if (name == type.name) return type.dtype;
    refuse("holds numbers of type '", printable(name), "': expected f2, f4, f8, u1, i1, i2, i4, i8 or b1, little-endian",
           name.starts_with('>') ? "; save x.astype('<" + printable(name.substr(1)) + "')" : "");
  }

  std::string_view text_;
  const std::string& path_;
  size_t at_ = 0;
};

}  // namespace

NpyArray read_npy(const std::string& path) {
  InputFile file(path);
  uint8_t head[12] = {};
  const int64_t got = file.read(head, 10);
  if (got < 10 || std::memcmp(head, "\x93NUMPY", 6) != 0)
    fail(ErrorCode::kBadInput, path, " is no NPY file (", file.num_bytes(), " bytes): expected one of numpy.save");
  const int major = head[6];
  if (major < 1 || major > 3 || head[7] != 0)
    fail(ErrorCode::kBadInput, path, " is NPY version ", major, ".", int{head[7]}, ": expected 1.0 to 3.0");
  if (major > 1) file.read_exactly(head + 10, 2);
  const int64_t begin = major > 1 ? 12 : 10;
  int64_t length = head[8] | head[9] << 8;
  if (major > 1) length |= int64_t{head[10]} << 16 | int64_t{head[11]} << 24;
  if (length > kMaxHeaderBytes || length > file.num_bytes() - begin)
    fail(ErrorCode::kBadInput, path, " says that its header has ", length, " bytes, and the file has ", file.num_bytes(),
         "; a header has at most ", kMaxHeaderBytes);
  std::string text(static_cast<size_t>(length), '\0');
  file.read_exactly(reinterpret_cast<uint8_t*>(text.data()), length);
  NpyArray array = Header(text, path).read();
  const int64_t elements = checked_num_elements(array.shape), bytes_of_one = dtype_bytes(array.dtype);
  const int64_t there = file.num_bytes() - begin - length;
  if (elements < 0 || elements > kMaxDataBytes / bytes_of_one || elements * bytes_of_one != there)
    fail(ErrorCode::kBadInput, path, " has ", there, " bytes of data, and its header says ", shape_text(array.shape), " of ",
         dtype_name(array.dtype));
  array.data = ByteBuffer(there, path);
  file.read_exactly(array.data.data(), there);
  return array;
}

}  // namespace cohort
