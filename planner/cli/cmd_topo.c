/* heddle topo: what a host consists of, and the machine that makes of it. */
#include "options.h"
#include "planner/report/text.h"
#include "planner/report/topo.h"
#include "runtime/files/output.h"

#include <string.h>

/* The machine: given, or what the host or its table of links shows; then measured times of links. */
static heddle_status make(heddle_machine **out, topo_view *view, const cli_arguments *a)
{
    heddle_status st = a->machine != NULL ? heddle_machine_load(out, a->machine)
                                          : heddle_machine_discover(out, a->xml, a->matrix, a->gpu);
    if (st == HEDDLE_OK && a->nccl_tests != NULL) {
        st = heddle_machine_import(*out, "nccl-tests", a->nccl_tests, &view->times);
    } else if (st == HEDDLE_OK && a->galvatron != NULL) {
        st = heddle_machine_import(*out, "galvatron", a->galvatron, &view->times);
    }
    return st == HEDDLE_OK ? heddle_machine_get_info(&view->machine, *out) : st;
}

static int show(const cli_arguments *a, const topo_view *view, const heddle_machine *machine)
{
    const int to_screen = a->output != NULL && strcmp(a->output, "-") == 0;
    if (a->output != NULL) {
        const int code = cli_report_written(heddle_machine_save(machine, a->output));
        if (code != CLI_OK || to_screen) {
            return code;
        }
    }
    if (a->json) {
        report_topo_json(view);
    } else {
        report_topo(view);
    }
    return CLI_OK;
}

static int run(const cli_arguments *a)
{
    heddle_machine *machine = NULL;
    topo_view view = {.host = HEDDLE_EMPTY(heddle_host_info),
                      .machine = HEDDLE_EMPTY(heddle_machine_info),
                      .times = HEDDLE_EMPTY(heddle_import_info)};
    if (a->machine != NULL && (a->matrix != NULL || a->xml != NULL || a->gpu != NULL)) {
        return cli_usage_error("--machine names the machine, which --xml, --matrix and --gpu would find");
    }
    if (a->nccl_tests != NULL && a->galvatron != NULL) {
        return cli_usage_error("times are taken from one file: --nccl-tests or --galvatron");
    }
    int code = a->output != NULL && strcmp(a->output, "-") != 0 ? cli_report(file_output_check(a->output)) : CLI_OK;
    if (code != CLI_OK) {
        return code;
    }
    view.has_host = a->machine == NULL && (a->xml != NULL || a->matrix == NULL);
    view.is_guessed = a->matrix != NULL && a->gpu == NULL;
    heddle_status st = view.has_host ? heddle_host_get_info(&view.host, a->xml) : HEDDLE_OK;
    if (st == HEDDLE_ERR_UNSUPPORTED && a->xml == NULL) { /* the rest is known without it */
        view.has_host = 0;
        st = HEDDLE_OK;
    }
    st = st == HEDDLE_OK ? make(&machine, &view, a) : st;
    code = st == HEDDLE_OK ? show(a, &view, machine) : cli_report(st);
    heddle_machine_destroy(machine);
    return code;
}

const cli_action cli_topo = {
    .synopsis = "usage: heddle topo [--xml FILE] [--matrix FILE] [--output machine.yaml] [--json]\n"
                "\n"
                "  heddle topo\n"
                "  nvidia-smi topo -m > links.txt; heddle topo --matrix links.txt --gpu h200 --output machine.yaml\n"
                "  heddle topo --machine 8xh100-nvlink --nccl-tests alltoall.txt --output machine.yaml\n"
                "\n"
                "What this host consists of, or another one by its files; the levels of links that its ranks have,\n"
                "and the machine that is like it, for --machine of other commands.\n",
    .notes = "Times of links replace published figures: nccl-tests counts a rank's whole send buffer, of which\n"
             "(n-1)/n leave it; in a group over several levels those that cross the outermost count.\n",
    .run = run,
};
