/* The umbrella of what a program uses every day:
 *
 *   status comm peers pool layout tensor ranks, shapes, layouts, arrays, errors
 *   reshard session schedule planner     moving between layouts: by hand, by stage, as planned
 *   machine forecast                     what a plan costs: seconds, bytes by link, memory
 *   attention linear_attention block rows     computing on what a rank holds
 *
 * Included by themselves: heddle/train/ (tape, bucket, adamw, dense_pair, pipeline), heddle/sys/ for those who extend
 * or measure heddle (transport, device, index, bench), and adapters to what a program has already (mpi, nccl, cuda,
 * dlpack). */
#ifndef HEDDLE_HEDDLE_H
#define HEDDLE_HEDDLE_H

#include <heddle/attention.h>
#include <heddle/block.h>
#include <heddle/comm.h>
#include <heddle/forecast.h>
#include <heddle/layout.h>
#include <heddle/linear_attention.h>
#include <heddle/machine.h>
#include <heddle/peers.h>
#include <heddle/planner.h>
#include <heddle/pool.h>
#include <heddle/reshard.h>
#include <heddle/rows.h>
#include <heddle/schedule.h>
#include <heddle/session.h>
#include <heddle/status.h>
#include <heddle/tensor.h>
#include <heddle/version.h>

#endif
