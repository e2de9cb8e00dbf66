/* heddle import: the model file of a diffusers config.json. */
#include "options.h"
#include "runtime/files/output.h"

#include <stdio.h>
#include <string.h>

static heddle_status write_file(const char *path, const char *text)
{
    file_output output;
    heddle_status st = file_output_open(&output, path);
    if (st == HEDDLE_OK) {
        fputs(text, output.file);
        st = file_output_close(&output, HEDDLE_OK);
    }
    return st;
}

static int run(const cli_arguments *a)
{
    char text[HEDDLE_IMPORT_BYTES];
    heddle_import_options options;
    heddle_import_options_init(&options);
    options.frames = a->frames;
    options.height = a->height;
    options.width = a->width;
    heddle_status st = heddle_model_import(text, sizeof text, a->operand, &options);
    if (st != HEDDLE_OK || a->output == NULL || strcmp(a->output, "-") == 0) {
        fputs(st == HEDDLE_OK ? text : "", stdout);
        return cli_report(st);
    }
    return cli_report_written(write_file(a->output, text));
}

const cli_action cli_import = {
    .synopsis = "usage: heddle import CONFIG.json [--frames N --height N --width N] [--output MODEL.yaml]\n"
                "\n"
                "The model file of the transformer that a config.json of diffusers describes (its _class_name says\n"
                "which model), for a clip of that size, or of the size that is usual for the model.\n",
    .notes = "exit codes: 0 done, 1 the output could not be written, 2 bad input\n",
    .run = run,
};
