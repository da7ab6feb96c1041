#include "cohort/base/files/csv.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/data_files.h"
#include "tests/support/mutation.h"
#include "tests/support/text.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

/// Reads `text` in pieces of `piece` bytes.
CsvReader reader_of(const std::string& text, int64_t piece = 1 << 20, char separator = ',') {
  return CsvReader(
      [text, at = size_t{0}, piece](uint8_t* out, int64_t num_bytes) mutable {
        const size_t count = std::min({static_cast<size_t>(num_bytes), static_cast<size_t>(piece), text.size() - at});
        std::memcpy(out, text.data() + at, count);
        at += count;
        return static_cast<int64_t>(count);
      },
      "x.csv", separator);
}

/// Rows as "line|a|b", faults as "line! fault".
std::vector<std::string> rows_of(const std::string& text, int64_t piece = 1 << 20, char separator = ',') {
  CsvReader reader = reader_of(text, piece, separator);
  std::vector<std::string> rows;
  TableRow row;
  while (reader.next(row)) {
    std::string line = std::to_string(row.line);
    if (!row.fault.empty()) line += "! " + row.fault;
    else
      for (const std::string& field : row.fields) line += "|" + field;
    rows.push_back(line);
  }
  return rows;
}

}  // namespace

TEST_CASE("csv: quotes, line ends, a byte-order mark and blanks, whatever the pieces in which bytes arrive") {
  const std::string text = "\xEF\xBB\xBF\"a\", b \r\n1,\"x,\"\"y\"\"\nz\"\r\n\n  , 2 3\t\n\"\",last";
  for (const int64_t piece : {1, 2, 3, 7, 1000}) {
    CHECK(reader_of(text, piece).header() == std::vector<std::string>{"a", "b"});
    CHECK(rows_of(text, piece) == std::vector<std::string>{"2|1|x,\"y\"\nz", "5||2 3", "6||last"});
  }
  CHECK(rows_of("a;b\n1,5;2\n", 100, ';') == std::vector<std::string>{"2|1,5|2"});
  CHECK(rows_of("a\tb\n\t2\n", 100, '\t') == std::vector<std::string>{"2||2"});
  CHECK(rows_of("a\n\"\"\n\n7\n") == std::vector<std::string>{"2|", "4|7"});
}

TEST_CASE("csv: a bad row is named and the next one is read") {
  CHECK(rows_of("a,b\n1\n1,2\n1,2,3\n3,4\n") ==
        std::vector<std::string>{"2! 1 field, and the header has 2", "3|1|2", "4! 3 fields, and the header has 2", "5|3|4"});
  CHECK(rows_of("a,b\n1,x\"y\n3,4\n")[0] == "2! field 2 has a quote inside; expected the whole field in quotes, and this quote doubled");
  CHECK(rows_of("a,b\n\"1\"2,x\n3,4\n") == std::vector<std::string>{"2! field 1 goes on after its closing quote", "3|3|4"});
  CHECK(rows_of("a,b\n1,2\n\"1,2\n3,4\n")[1] == "3! a quote that is opened in this row is not closed before the end of the file");
  const std::vector<std::string> rows = rows_of("a,b\n1,2\n" + std::string((1 << 24) + 9, 'x') + "\n3,4\n");
  CHECK(mentions(rows[1], "3! has more than 16777216 bytes"));
  CHECK(rows[2] == "4|3|4");
}

TEST_CASE("csv: a first line that names no columns") {
  CHECK(error_of([] { reader_of(""); }) == "x.csv is empty: expected a first line with the names of the columns");
  CHECK(mentions(error_of([] { reader_of("\n\n"); }), "is empty"));
  CHECK(error_of([] { reader_of("a,,b\n"); }) == "x.csv:1: column 2 has no name: expected a first line with the names of the columns");
  CHECK(error_of([] { reader_of("a,b,a\n"); }) == "x.csv:1: two columns have the name 'a'");
  CHECK(mentions(error_of([] { reader_of("\xEF\xBB"); }), "byte-order mark that is cut short"));
}

TEST_CASE("mutation: any bytes are rows or faults, and each row has the header's fields") {
  const std::string whole = "a,b,\"c\"\r\n1,\"x,\"\"y\"\"\nz\",3\r\n4,5,6\n,\"\",7\n";
  int64_t rows = 0, faults = 0;
  for (uint64_t seed = 1; seed <= mutation_count(3000); ++seed)
    succeeds_or_is_refused([&] {
      CsvReader reader = reader_of(mutated(whole, seed), 1 + static_cast<int64_t>(seed % 9));
      TableRow row;
      while (reader.next(row)) {
        ++(row.fault.empty() ? rows : faults);
        if (row.fault.empty()) REQUIRE(row.fields.size() == reader.header().size());
      }
    });
  CHECK(rows > 1000);
  CHECK(faults > 1000);
}
