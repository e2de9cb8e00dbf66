/* heddle presets: models and machines that are known by name. */
#include "options.h"
#include "planner/report/presets.h"

static int run(const cli_arguments *a)
{
    return cli_report(a->operand == NULL ? report_presets(a->json) : report_preset(a->operand, a->json));
}

const cli_action cli_presets = {
    .synopsis = "usage: heddle presets [NAME] [--json]\n"
                "\n"
                "Models and machines that other commands take by name. With a NAME its file, as a start for one's\n"
                "own:\n"
                "\n"
                "  heddle presets hunyuanvideo > mine.yaml\n",
    .notes = "The column 'runs' says whether heddle run runs all of its stages; the others are planned alone.\n"
             "JSON: schema, models [{name, layers, channels, heads, batch, tokens, text_tokens, parameters,\n"
             "runs, source}], machines [{name, ranks, source}]; of one model with its text, yaml.\n",
    .run = run,
};
