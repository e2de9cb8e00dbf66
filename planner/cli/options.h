/* What the command line says: one table has every option of every sub-command, and one struct what they set. */
#ifndef HD_CLI_OPTIONS_H
#define HD_CLI_OPTIONS_H

#include "cli.h"

enum { CLI_LIST_BYTES = 4096 };
typedef char cli_list[CLI_LIST_BYTES]; /* "": nothing was said */

/* Words to choose from, by number; 0: nothing was said. */
enum { CLI_FIRST = 1 };

/* The place of the word among the option's words; the first where nothing was said. */
static inline int cli_choice(int number)
{
    return number > 0 ? number - 1 : 0;
}
#define CLI_OBJECTIVES "time|bytes|slow-bytes|memory|gpu-seconds"

/* Numbers that were not given are 0 (seed: -1), texts NULL, unless the table has a default. */
struct cli_arguments {
    const cli_command *command;
    int argc; /* from the sub-command's name on, for mpirun, whose ranks read them again */
    char **argv;
    const char *operand; /* the model, reshard line or problem; NULL: none was given */
    const char *second;  /* of two operands; else NULL */
    /* ranks */
    long long ranks, hosts, deadline_s, arena_bytes;
    const char *transport, *device;
    int messages, wire, blocks, fused;
    /* models */
    const char *mesh, *prologue, *epilogue, *schedule, *input, *output, *weights;
    const char *machine, *measured, *longest, *listed, *baseline, *meshes, *sweep;
    long long curves;
    cli_list methods, sizes, force, why_not, links;
    long long memory_bytes, workspace_bytes, top, candidates;
    int objective, training, csv, analyze;
    long long layers, slack_percent, max_waste_percent, passes;
    int dtype, backward, recompute, check;
    /* problems */
    const char *method, *key_lengths, *decay, *save, *kernel;
    long long random, seed, threads, kv_heads, projected, dv, chunk, iterations, seconds;
    long long rows, in, out;
    int causal, zigzag, all_reduce, bidirectional, receive_first;
    int memory, tuning, list_kernels;
    /* import */
    long long frames, height, width;
    /* topo */
    const char *xml, *matrix, *gpu, *nccl_tests, *galvatron;
    int json, help;
};

/* NULL: nothing was said. */
static inline const char *cli_said(const char *list)
{
    return list[0] != '\0' ? list : NULL;
}

/* Options and the operand of argv[first..]; argc and argv are left to the arguments. CLI_OK or CLI_BAD_INPUT
 * (complained). Nothing more is checked where help was asked for. */
int cli_parse(cli_arguments *out, const cli_command *command, int first, int argc, char **argv);
/* How the sub-command is used: its synopsis, its options as the table has them, its notes. */
void cli_print_usage(const cli_command *command);
/* What installations have besides, by name: "man" (heddle.1), "bash", "zsh" (completion). 0: there is no such page. */
int cli_print_page(const char *name);

/* "sp=4" and "node=2,gpu=4" as well as the text form in brackets. */
heddle_status cli_parse_mesh(heddle_mesh *out, const char *text);
/* *ranks: the mesh's, which --ranks, where it is given, must not contradict. CLI_OK or CLI_BAD_INPUT (complained). */
int cli_mesh_ranks(int *ranks, const cli_arguments *a, const heddle_mesh *mesh);

#endif
