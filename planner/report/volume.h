/* Bytes that every rank sends to every other, to standard output: what `heddle volume` prints. */
#ifndef HD_REPORT_VOLUME_H
#define HD_REPORT_VOLUME_H

#include <heddle/heddle.h>

/* As a table (of up to 16 ranks, and sums) or as JSON. */
heddle_status report_volume(const heddle_reshard_line *line, int json);

#endif
