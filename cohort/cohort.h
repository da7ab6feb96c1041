#pragma once
// Everything a program that uses Cohort needs.

#include "cohort/base/error.h"
#include "cohort/base/export.h"
#include "cohort/comm/group.h"
#include "cohort/data/registry.h"
#include "cohort/infer/trained_model.h"
#include "cohort/job/config.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/models/graph/recompute.h"
#include "cohort/models/layers/dropout.h"
#include "cohort/models/metric/own_metrics.h"
#include "cohort/models/registry.h"
#include "cohort/parallel/batch_norm/convert_sync_batch_norm.h"
#include "cohort/parallel/join.h"
#include "cohort/parallel/strategy/buffer_average.h"
#include "cohort/parallel/strategy/data_parallel.h"
#include "cohort/parallel/zero/zero_data_parallel.h"
#include "cohort/pipeline/pipeline_runner.h"
#include "cohort/pipeline/split_backward.h"
#include "cohort/pipeline/stage_cut.h"
#include "cohort/run/trainer.h"
#include "cohort/schedule/schedule.h"
#include "cohort/session/loader_sampler.h"
#include "cohort/session/parallel.h"
#include "cohort/session/session.h"
#include "cohort/session/tensor_data_set.h"
#include "cohort/tensor/shard_graph.h"
#include "cohort/version.h"
#include "cohort/world/world.h"

namespace cohort {

/// The whole program: all verbs, with the models that this binary registered. Returns the exit code. Call it from main() before any thread
/// is started.
COHORT_API int run_cli(int argc, char** argv);

}  // namespace cohort
