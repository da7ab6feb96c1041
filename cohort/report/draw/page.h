#pragma once
// HTML and SVG elements as text. Text from files must pass through escape_html() or an attribute value.

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cohort::report {

/// Replaces & < > " ' by entities, and control characters other than newline and tab, which HTML does not allow, by U+FFFD.
std::string escape_html(std::string_view text);

/// `<name a="b">content</name>`. Attribute values are escaped, content is markup. Attributes with an empty value are omitted.
using Attributes = std::initializer_list<std::pair<const char*, std::string>>;
std::string element(const char* name, Attributes attributes, const std::string& content);
/// `<name a="b"/>`, for SVG.
std::string element(const char* name, Attributes attributes);

/// A key figure, in plain text.
struct Tile {
  std::string label, value, note;
};
std::string tiles(const std::vector<Tile>& list);

/// A section with its heading and an introduction (plain text, may be empty); content is markup.
std::string section(const std::string& id, const std::string& heading, const std::string& intro, const std::string& content);

/// A box that scrolls sideways, also by the keyboard. `label` is its accessible name; content is markup.
std::string scroll_box(const std::string& label, const std::string& content, const std::string& css_class = "scroll");

/// A table in a scroll_box(). Cells are markup.
struct Table {
  struct Column {
    std::string heading;  ///< Plain text.
    bool is_number = false;
  };
  std::vector<Column> columns;
  std::vector<std::vector<std::string>> rows;
};
std::string table(const Table& table, const std::string& label);

/// Names and values in plain text, in as many columns as fit; an empty value is shown as an en dash.
std::string definitions(const std::vector<std::pair<std::string, std::string>>& list);

/// The document: head with styles, `body`, the script of the read-outs, and `script`.
std::string document(const std::string& title, const std::string& body, const std::string& script = "");
/// A document for StudyCharts, with their styles and script.
std::string study_document(const std::string& title, const std::string& body);

}  // namespace cohort::report
