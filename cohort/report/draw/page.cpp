#include "cohort/report/draw/page.h"

#include "cohort/base/fail.h"
#include "cohort/report/draw/style.h"

namespace cohort::report {
namespace {

std::string open_tag(const char* name, Attributes attributes) {
  std::string out = std::string("<") + name;
  for (const auto& [key, value] : attributes) {
    if (!value.empty()) out += std::string(" ") + key + "=\"" + escape_html(value) + "\"";
  }
  return out;
}

std::string whole_page(const std::string& title, const std::string& style, const std::string& body, const std::string& script) {
  return "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         "<meta name=\"color-scheme\" content=\"light dark\">\n"
         "<link rel=\"icon\" href=\"data:,\">\n<title>" +
         escape_html(title) + "</title>\n<style>" + style + "</style>\n</head>\n<body>\n" + body + "<script>" + script +
         "</script>\n</body>\n</html>\n";
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    if (character == '&') out += "&amp;";
    else if (character == '<') out += "&lt;";
    else if (character == '>') out += "&gt;";
    else if (character == '"') out += "&quot;";
    else if (character == '\'') out += "&#39;";
    else if ((byte < 0x20 && character != '\n' && character != '\t') || byte == 0x7f) out += "\ufffd";
    else out += character;
  }
  return out;
}

std::string element(const char* name, Attributes attributes, const std::string& content) {
  return open_tag(name, attributes) + ">" + content + "</" + name + ">";
}

std::string element(const char* name, Attributes attributes) { return open_tag(name, attributes) + "/>"; }

std::string tiles(const std::vector<Tile>& list) {
  std::string out;
  for (const Tile& tile : list) {
    out += "<div class=\"tile\"><dt>" + escape_html(tile.label) + "</dt><dd>" + escape_html(tile.value) + "</dd>";
    if (!tile.note.empty()) out += "<dd class=\"note\">" + escape_html(tile.note) + "</dd>";
    out += "</div>";
  }
  return "<dl class=\"tiles\">" + out + "</dl>\n";
}

std::string section(const std::string& id, const std::string& heading, const std::string& intro, const std::string& content) {
  std::string out = "<section id=\"" + id + "\">\n<h2>" + escape_html(heading) + "</h2>\n";
  if (!intro.empty()) out += "<p class=\"intro\">" + escape_html(intro) + "</p>\n";
  return out + content + "</section>\n";
}

std::string scroll_box(const std::string& label, const std::string& content, const std::string& css_class) {
  return element("div", {{"class", css_class}, {"tabindex", "0"}, {"role", "region"}, {"aria-label", label}}, content);
}

std::string table(const Table& table, const std::string& label) {
  const auto number_class = [&](size_t column) { return std::string(table.columns[column].is_number ? "number" : ""); };
  std::string head, body;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    head += element("th", {{"scope", "col"}, {"class", number_class(i)}}, escape_html(table.columns[i].heading));
  }
  for (const auto& row : table.rows) {
    body += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      body += i == 0 ? element("th", {{"scope", "row"}, {"class", number_class(i)}}, row[i])
                     : element("td", {{"class", number_class(i)}}, row[i]);
    }
    body += "</tr>\n";
  }
  return scroll_box(label, "<table><thead><tr>" + head + "</tr></thead>\n<tbody>" + body + "</tbody></table>") + "\n";
}

std::string definitions(const std::vector<std::pair<std::string, std::string>>& list) {
  std::string out;
  for (const auto& [name, value] : list) {
    out += "<div><dt>" + escape_html(name) + "</dt>" +
           (value.empty() ? std::string("<dd class=\"none\">\u2013</dd>") : "<dd>" + escape_html(value) + "</dd>") + "</div>";
  }
  return "<dl class=\"definitions\">" + out + "</dl>\n";
}

std::string document(const std::string& title, const std::string& body, const std::string& script) {
  return whole_page(title, report_style(), body, report_script() + script);
}

std::string study_document(const std::string& title, const std::string& body) {
  return whole_page(title, concat(report_style(), study_style()), body, study_script());
}

}  // namespace cohort::report
