/* heddle: sequence parallelism by switches of the sharded dim and by attention over it; planning, training. The
 * umbrella header; adapters (mpi.h) are included separately. */
#ifndef HEDDLE_HEDDLE_H
#define HEDDLE_HEDDLE_H

#include <heddle/attention.h>
#include <heddle/bench.h>
#include <heddle/block.h>
#include <heddle/comm.h>
#include <heddle/gradient.h>
#include <heddle/index.h>
#include <heddle/layout.h>
#include <heddle/linear_attention.h>
#include <heddle/linear_pair.h>
#include <heddle/pipeline.h>
#include <heddle/planner.h>
#include <heddle/reshard.h>
#include <heddle/schedule.h>
#include <heddle/session.h>
#include <heddle/status.h>
#include <heddle/tensor.h>
#include <heddle/train.h>
#include <heddle/transport.h>
#include <heddle/version.h>

#endif
