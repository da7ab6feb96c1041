#pragma once
// Pieces of HTML and SVG as text. Text that came from a file passes through escape_html or an attribute value here, and nowhere else.

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cohort::report {

/// & < > " ' as entities; control characters other than newline and tab, which HTML does not allow, as U+FFFD.
std::string escape_html(std::string_view text);

/// `<name a="b">content</name>`: attribute values are escaped here, content is markup as it is. An attribute with an empty value is left
/// out.
using Attributes = std::initializer_list<std::pair<const char*, std::string>>;
std::string element(const char* name, Attributes attributes, const std::string& content);
/// `<name a="b"/>`, for SVG.
std::string element(const char* name, Attributes attributes);

/// A key figure. Plain text, escaped here.
struct Tile {
  std::string label, value, note;
};
std::string tiles(const std::vector<Tile>& list);

/// A section with its heading and one line on what it shows (plain text, may be empty); content is markup.
std::string section(const std::string& id, const std::string& heading, const std::string& intro, const std::string& content);

/// A table that scrolls sideways in a box of its own. Cells are markup.
struct Table {
  struct Column {
    std::string heading;  ///< Plain text.
    bool is_number = false;
  };
  std::vector<Column> columns;
  std::vector<std::vector<std::string>> rows;
};
std::string table(const Table& table, const std::string& label);

/// Names and values, in as many columns as fit. Plain text; an empty value is shown as an en dash.
std::string definitions(const std::vector<std::pair<std::string, std::string>>& list);

/// The whole document: head with style, `body`, the script of the read-outs and one more.
std::string document(const std::string& title, const std::string& body, const std::string& script = "");
/// The same for charts of points: their style too, and their script alone.
std::string study_document(const std::string& title, const std::string& body);

}  // namespace cohort::report
