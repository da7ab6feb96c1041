// NPY (NumPy Enhancement Proposal 1): bytes 0x93 "NUMPY", version (1.0, 2.0 or 3.0), the header's length in 2 or 4 bytes, a header such as
//   {'descr': '<f4', 'fortran_order': False, 'shape': (10, 3), }
// filled up with blanks, a line feed, the data. The header is turned into JSON letter by letter and read as such: no Python is evaluated.

#include "cohort/data/tensors/npy.h"

#include <cstring>
#include <string_view>

#include "cohort/base/fail.h"
#include "cohort/base/files/byte_reader.h"
#include "cohort/base/text/json_fields.h"
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

/// The header as JSON: Python's quotes, brackets and False in those of JSON, without the commas that Python allows at an end.
std::string json_of(std::string_view header) {
  std::string out;
  bool in_text = false;
  for (const char letter : header) {
    if (letter == '\'') in_text = !in_text;
    if (in_text && letter != '\'') {
      out += letter;
      continue;
    }
    const bool closes = letter == ')' || letter == '}';
    if (closes && out.find_last_not_of(" ,\n") != std::string::npos) out.resize(out.find_last_not_of(" ,\n") + 1);
    out += letter == '\'' ? '"' : letter == '(' ? '[' : letter == ')' ? ']' : letter == 'F' ? 'f' : letter == 'T' ? 't' : letter;
  }
  return out;
}

DType type_of(const std::string& name, const JsonFields& header) {
  for (const Type& type : kTypes)
    if (name == type.name) return type.dtype;
  header.refuse("holds numbers of type '", printable(name), "': expected f2, f4, f8, u1, i1, i2, i4, i8 or b1, little-endian",
                name.starts_with('>') ? "; save x.astype('<" + printable(name.substr(1)) + "')" : "");
}

}  // namespace

NpyArray read_npy(const std::string& path) {
  InputFile file(path);
  uint8_t head[12] = {};
  const int64_t got = file.read(head, 10);
  if (got < 10 || std::memcmp(head, "\x93NUMPY", 6) != 0)
    fail(ErrorCode::kBadInput, path, " is not an NPY file (", file.num_bytes(), " bytes): expected one of numpy.save");
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
  const std::string where = path + ": NPY header";
  const Json json = parse_strict_ordered_json(json_of(text), {.path = where});
  const JsonFields header(json, where);
  if (json.size() != 3) header.refuse("expected the keys descr, fortran_order and shape alone");
  NpyArray array;
  array.dtype = type_of(header.text("descr"), header);
  if (header.flag("fortran_order")) header.refuse("the array is in Fortran's order; save numpy.ascontiguousarray(x)");
  array.shape = header.naturals("shape", kMaxDimensions);
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
