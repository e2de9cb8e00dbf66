/* What `heddle topo` prints. */
#ifndef HD_REPORT_TOPO_H
#define HD_REPORT_TOPO_H

#include <heddle/machine.h>

typedef struct topo_view {
    int has_host, is_guessed; /* by hwloc; which GPU a table of links is of */
    heddle_host_info host;
    heddle_machine_info machine;
    heddle_import_info times; /* without rows where none were given */
} topo_view;

void report_topo(const topo_view *view);
void report_topo_json(const topo_view *view);

#endif
