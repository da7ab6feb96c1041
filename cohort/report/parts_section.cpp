// Who held what: one row a rank with its place on the mesh, its stages and layers, how long it waited for others, and its memory: what the
// layout's formula says of weights, gradients and optimizer state, and what the allocator counted where there was a limit.

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "cohort/base/text/text.h"
#include "cohort/report/draw/format.h"
#include "cohort/report/sections.h"

namespace cohort::report {
namespace {

struct Column {
  Table::Column head;
  std::function<std::string(const RankRecord&)> cell;  ///< Markup; "" where this rank has nothing to say.
};

std::string in_part(const RankRecord& rank, const std::function<std::string(const PartRecord&)>& cell) {
  return rank.part ? cell(*rank.part) : "";
}

std::string stages_text(const PartRecord& part) {
  std::vector<std::string> list;
  for (const int64_t stage : part.stages) list.push_back(std::to_string(stage));
  return join(list, ", ");
}

std::string peak_text(const RankRecord& rank) {
  if (!rank.peak_tensor_bytes) return "";
  std::string peak = escape_html(bytes_text(rank.peak_tensor_bytes));
  if (!rank.memory_limit_bytes || *rank.memory_limit_bytes == 0) return peak;
  const double share = static_cast<double>(*rank.peak_tensor_bytes) / static_cast<double>(*rank.memory_limit_bytes);
  return peak + element("small", {}, escape_html(percent_text(share, 0) + " of " + bytes_text(rank.memory_limit_bytes)));
}

std::string formula_cell(const std::optional<int64_t>& bytes) { return bytes ? escape_html(bytes_text(bytes)) : ""; }

std::vector<Column> all_columns(int64_t num_steps) {
  return {{{"rank", false}, [](const RankRecord& rank) { return std::to_string(rank.rank); }},
          {{"data", false},
           [](const RankRecord& rank) { return in_part(rank, [](const PartRecord& part) { return escape_html(part.data); }); }},
          {{"pipe", false},
           [](const RankRecord& rank) { return in_part(rank, [](const PartRecord& part) { return escape_html(part.pipe); }); }},
          {{"tensor", false},
           [](const RankRecord& rank) { return in_part(rank, [](const PartRecord& part) { return escape_html(part.tensor); }); }},
          {{"stages", false}, [](const RankRecord& rank) { return in_part(rank, stages_text); }},
          {{"waited", true},
           [num_steps](const RankRecord& rank) {
             return in_part(rank, [num_steps](const PartRecord& part) -> std::string {
               if (!std::isfinite(part.waited_seconds) || num_steps <= 0) return "";
               return escape_html(milliseconds_text(part.waited_seconds / static_cast<double>(num_steps)));
             });
           }},
          {{"kept micro-batches", true},
           [](const RankRecord& rank) {
             return in_part(rank, [](const PartRecord& part) {
               return part.most_kept_micro_batches ? escape_html(count_text(part.most_kept_micro_batches)) : std::string();
             });
           }},
          {{"weights", true}, [](const RankRecord& rank) { return formula_cell(rank.weight_bytes); }},
          {{"gradients", true}, [](const RankRecord& rank) { return formula_cell(rank.gradient_bytes); }},
          {{"optimizer", true}, [](const RankRecord& rank) { return formula_cell(rank.optimizer_bytes); }},
          {{"peak of tensors", true}, peak_text},
          {{"layers", false},
           [](const RankRecord& rank) { return in_part(rank, [](const PartRecord& part) { return layer_names(part.layers); }); }}};
}

}  // namespace

std::string layer_names(const std::vector<std::string>& names) {
  return names.empty() ? "" : element("span", {{"class", "names"}}, escape_html(join(names, ", ")));
}

std::string parts_section(const RunRecord& run, const Summary& summary) {
  bool divided = false, counted = false;
  for (const RankRecord& rank : run.ranks) {
    divided = divided || rank.part;
    counted = counted || rank.peak_tensor_bytes;
  }
  if (!divided && !counted) return "";
  Table list;
  list.rows.resize(run.ranks.size());
  for (const Column& column : all_columns(summary.steps_of_last_process)) {
    std::vector<std::string> cells;
    bool is_empty = true;
    for (const RankRecord& rank : run.ranks) {
      cells.push_back(column.cell(rank));
      is_empty = is_empty && cells.back().empty();
    }
    if (is_empty) continue;
    list.columns.push_back(column.head);
    for (size_t row = 0; row < cells.size(); ++row) list.rows[row].push_back(cells[row].empty() ? "\u2013" : cells[row]);
  }
  std::string intro = divided ? "Each rank's place on the axes of the layout and its part of the model. " : "";
  intro += "Weights, gradients and optimizer state by the formula of the layout.";
  if (counted) intro += " The peak of tensors is what the allocator counted, activations included, against the limit that it enforced.";
  return section("parts", "Who holds what", intro, table(list, "Who holds what"));
}

}  // namespace cohort::report
