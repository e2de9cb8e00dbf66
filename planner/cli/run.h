/* heddle run: what its files share. cmd_run.c reads the options and prepares a job in the calling process; every rank
 * then works on it (run_forward.c), and rank 0 reports. */
#ifndef HD_CLI_RUN_H
#define HD_CLI_RUN_H

#include "launch.h"
#include "options.h"
#include "runtime/files/npy.h"
#include "runtime/files/safetensors.h"
#include "runtime/files/y4m.h"

/* How a clip is cut into tokens. Patches that would stick out of the clip are left away. */
typedef struct run_patches {
    int64_t t, y, x;               /* patches along time, height, width */
    int64_t frames, height, width; /* samples per patch */
    int64_t values;                /* of one patch: 3 planes */
} run_patches;

typedef enum run_input_kind { RUN_SEEDED, RUN_CLIP, RUN_ARRAY } run_input_kind;

typedef struct run_file {
    uint8_t *bytes;
    size_t size;
} run_file;

typedef struct run_job {
    const cli_arguments *options;
    heddle_model *model;
    heddle_model_info info;
    heddle_mesh mesh;
    heddle_schedule *schedule;
    run_input_kind input;
    run_file clip_file, weights_file;
    y4m_clip clip;
    run_patches patches;
    npy_array array;
    safetensors_file weights;
    float *embed_weight; /* [c, values], then its transpose or the file's, [values, c] */
    float *final_weight;
    int *place;                     /* [ranks] step each is in, from 1; memory shared by forked ranks; may be NULL */
    float *embed_bias, *final_bias; /* [c], [values]; zero unless the file has them */
} run_job;

/* One entered stage on this rank, or the epilogue. All int64_t, so that ranks exchange them as they are. */
typedef struct run_step {
    int64_t planned, sent, messages; /* bytes */
    int64_t switch_ns, compute_ns;
    int64_t kept_bytes; /* for the backward, by the block of this step */
} run_step;

enum { RUN_PATH_BYTES = 24 };

/* The sum of the parameters' gradients over the ranks. */
typedef struct run_reduction {
    int64_t elems, planned, sent, ns; /* bytes of this rank */
} run_reduction;

/* What every rank has all of in the end. */
enum { RUN_WHOLE_OUTPUT, RUN_WHOLE_DX, RUN_WHOLE_GRADIENT, RUN_WHOLES };

typedef struct run_result {
    int nsteps;                   /* stages and the epilogue */
    run_step *step;               /* [nsteps] of the fastest pass */
    char (*path)[RUN_PATH_BYTES]; /* [nsteps] how this rank moved; "" where nothing did */
    int64_t forward_ns;           /* of the fastest pass */
    void *output;       /* whole activation, row-major, in the model's dtype; NULL where it was not asked for */
    int64_t peak_bytes; /* of this process */
    /* The rest with --backward only. */
    run_step *back;                    /* [nsteps] the way back through a stage and its edge */
    char (*back_path)[RUN_PATH_BYTES]; /* [nsteps] */
    int64_t backward_ns;               /* of the fastest pass, without the reduction */
    run_reduction reduction;
    void *dx;                  /* whole gradient of the input, in the model's dtype; NULL where it was not asked for */
    int nparts;                /* parameters of all stages, then the conditioning's vector and text */
    int64_t *part_elems;       /* [nparts] */
    float *gradient;           /* part after part; on rank 0 */
    uint64_t hash[RUN_WHOLES]; /* of this rank's bytes; 0 where it has none */
} run_result;

/* run_prepare.c: exit codes, complained */
/* --ranks, else the ranks of the mesh or the schedule, else the launcher's. */
int run_count_ranks(int *ranks, const cli_arguments *options);
int run_prepare(run_job *job, int ranks); /* run_release_job afterwards in any case */
void run_release_job(run_job *job);

/* run_main.c: a heddle_rank_main whose arg is the job */
heddle_status run_main(heddle_comm *comm, void *arg);

/* run_input.c */
/* "-" is standard input; CLI_OK or an exit code (complained). A file without `start` at byte start_at is not read to
 * its end. */
int run_read_file(run_file *out, const char *path, const char *start, size_t start_at);
void run_release_file(run_file *file);
int run_open_input(run_job *job);
int run_fit_model(run_job *job); /* extents of the input and of the options go into the model */

/* run_embed.c */
int run_make_embedding(run_job *job);
/* The local part of the first activation, in the model's dtype. */
heddle_status run_fill(void *x, const run_job *job, const heddle_box *box);
float run_uniform(uint64_t seed, uint64_t index); /* -1..1, a function of its arguments */
float run_load(const void *x, int64_t index, heddle_dtype dtype);

void run_step_name(char *out, size_t out_bytes, const run_job *job, int step); /* run_output.c */

/* run_weights.c */
int run_open_weights(run_job *job);
heddle_status run_block_options(heddle_block_options *options, const run_job *job, int stage);
heddle_status run_make_block(heddle_block **out, const run_job *job, int stage);
/* Weights of one repetition of a stage, from the file or the seed. */
heddle_status run_set_weights(heddle_block *block, const run_job *job, int stage, int repetition);

/* run_forward.c */
heddle_status run_forward(run_result *out, const run_job *job, heddle_comm *comm, const heddle_schedule *schedule,
                          int want_output);
void run_release(run_result *result);

/* What rank 0 knows of all. */
typedef struct run_report {
    const run_job *job;
    const run_result *mine;
    const char *comm; /* heddle_comm_describe */
    int nranks;
    const run_step *steps; /* all ranks' steps, rank after rank */
    const run_step *back;  /* likewise of the way back, NULL without */
    const int64_t *totals; /* [nranks][RUN_TOTALS] */
} run_report;

enum {
    RUN_TOTAL_FORWARD_NS,
    RUN_TOTAL_PEAK_BYTES,
    RUN_TOTAL_PID,
    RUN_TOTAL_BACKWARD_NS,
    RUN_TOTAL_REDUCE_NS,
    RUN_TOTAL_REDUCE_PLANNED,
    RUN_TOTAL_REDUCE_SENT,
    RUN_TOTAL_HASH, /* RUN_WHOLES of them */
    RUN_TOTAL_LAST_HASH = RUN_TOTAL_HASH + RUN_WHOLES - 1,
    RUN_TOTALS
};

/* What --check found, as sentences; "" where it did not look. */
typedef struct run_verdict {
    int code;
    char bytes[256], values[512];
    char back_bytes[256], dx[512], gradients[512];
    double gradient_error; /* relative to the largest gradient of the same tensor */
} run_verdict;

/* run_report.c */
void run_print_table(const run_report *report);
void run_print_json(const run_report *report, const run_verdict *verdict);

/* run_report_step.c */
void run_print_step_table(const run_report *report);
void run_print_step_json(const run_report *report, const run_verdict *verdict);

/* run_check_step.c: sentences and CLI_OK or CLI_MISMATCH */
int run_check_backward_bytes(char *sentence, size_t sentence_bytes, const run_report *r);
int run_check_input_gradient(char *sentence, size_t sentence_bytes, const run_job *job, const void *dx,
                             const void *reference);
int run_check_gradients(char *sentence, size_t sentence_bytes, double *error, const run_job *job,
                        const run_result *mine, const run_result *reference);

/* run_output.c */
int run_write_output(const run_job *job, const void *output);
/* The first step where some rank sent other bytes than planned, as a sentence; 0 or CLI_MISMATCH. */
int run_check_bytes(char *sentence, size_t sentence_bytes, const run_job *job, int nranks, int nsteps,
                    const run_step *steps);
int run_check_values(char *sentence, size_t sentence_bytes, const run_job *job, const void *output,
                     const void *reference);
/* Has every rank the bytes that rank 0 has? Where not, a sentence and CLI_MISMATCH. */
int run_check_copies(char *sentence, size_t sentence_bytes, const run_report *r, int whole);
uint64_t run_hash(uint64_t hash, const void *data, size_t bytes); /* goes on from `hash`, at first 0 */

#endif
