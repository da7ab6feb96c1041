#pragma once
// Checks which SVG charts of files may be embedded into a page.

#include <string>

namespace cohort::report {

/// Whether `text` is one `svg` element of g, rect, text and title only, with attributes for position, size, colour and names: no script,
/// link, style or markup declaration, so that it is safe to embed.
bool is_plain_svg(const std::string& text);

}  // namespace cohort::report
