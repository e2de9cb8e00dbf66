/* Models and machines that are part of the library. */
#ifndef HD_REPORT_PRESETS_H
#define HD_REPORT_PRESETS_H

#include <heddle/heddle.h>

/* All of them, as a table or as JSON. */
heddle_status report_presets(int json);
/* The file of one: a model's as it is, or in JSON with its figures; a machine's. HEDDLE_ERR_ARG: there is none of that
 * name. */
heddle_status report_preset(const char *name, int json);

#endif
