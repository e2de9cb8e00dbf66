/* heddle verify linear-attention: outputs, gradients and states on real ranks against the recurrence on one. */
#include "launch.h"
#include "linear_cli.h"
#include "npy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char usage[] =
    "usage: heddle verify linear-attention 'f32[b=2 s=37 h=6 d=16] on [sp=4]' --method M [options]\n"
    "       heddle verify linear-attention --random COUNT --ranks N [--seed S] [options]\n"
    "\n" LINEAR_OPTIONS_TEXT "  --save DIR         writes q k v do o dq dk dv .npy, [b s h d]\n"
    "\n"
    "The sequence is on all mesh axes unless a layout follows the mesh ('... on [dp=2 sp=2]: b@dp,s@sp'). Checked: o,\n"
    "dq, dk, dv to 1e-12 (f64), 2e-5 (f32), 1e-2 (bf16) of the largest value, the state behind the last row in both\n"
    "conventions, <do, o> = <q, dq> = <k, dk> = <v, dv>, bytes and messages measured = planned. Exit code 5 when\n"
    "anything differs.\n";

static heddle_status save_array(const linear_request *r, const char *name, const double *data, int64_t width)
{
    char path[4096];
    const heddle_shape *shape = &r->problem.shape;
    const int64_t extent[4] = {shape->dim[0].extent, shape->dim[1].extent, shape->dim[2].extent, width};
    int64_t elems = extent[0] * extent[1] * extent[2] * extent[3];
    int wide = shape->dtype == HEDDLE_F64;
    float *narrow = calloc((size_t)elems + 1, sizeof *narrow);
    if (narrow == NULL) {
        return HEDDLE_ERR_NOMEM;
    }
    for (int64_t i = 0; i < elems; i++) {
        narrow[i] = (float)data[i];
    }
    snprintf(path, sizeof path, "%s/%s.npy", r->save, name);
    int code = npy_write(path, wide ? "<f8" : "<f4", 4, extent, wide ? (const void *)data : narrow);
    free(narrow);
    if (code != CLI_OK) {
        cli_verdict(CLI_BAD_INPUT);
    }
    return HEDDLE_OK;
}

static heddle_status save_all(const linear_request *r, const linear_arrays *x)
{
    int64_t dk = r->problem.shape.dim[3].extent, dv = r->problem.options.dv > 0 ? r->problem.options.dv : dk;
    const struct {
        const char *name;
        const double *data;
        int64_t width;
    } all[] = {{"q", x->q, dk}, {"k", x->k, dk},   {"v", x->v, dv},   {"do", x->d_o, dv},
               {"o", x->o, dv}, {"dq", x->dq, dk}, {"dk", x->dk, dk}, {"dv", x->dv, dv}};
    heddle_status st = HEDDLE_OK;
    for (size_t i = 0; i < sizeof all / sizeof all[0] && st == HEDDLE_OK; i++) {
        st = save_array(r, all[i].name, all[i].data, all[i].width);
    }
    return st;
}

static heddle_status print_result(const linear_case *c, const linear_errors *e, const heddle_comm *comm)
{
    char text[2048];
    heddle_attention_traffic most, all;
    heddle_status st = linear_traffic(&most, &all, c);
    linear_describe(text, sizeof text, c);
    printf("%s\n", text);
    printf("errors: o %.2e  dq %.2e  dk %.2e  dv %.2e  state %.2e  adjoint %.2e  (allowed %.1e)\n", e->o, e->dq, e->dk,
           e->dv, e->state, e->adjoint, e->tolerance);
    printf("sent forward %lld messages of %lld bytes, at most %lld by a rank; backward %lld messages of %lld bytes, at "
           "most %lld by a rank; as planned\n",
           (long long)all.forward_messages, (long long)e->state_bytes, (long long)most.forward_messages,
           (long long)all.backward_messages, (long long)e->state_bytes, (long long)most.backward_messages);
    printf("%lld messages follow one another\n", (long long)e->serial_steps);
    printf("right on %s\n", heddle_comm_describe(comm));
    fflush(stdout);
    return st;
}

/* Every rank hears whether any found a problem; the lowest that did prints it. */
static heddle_status agree(int *failed, heddle_comm *comm, const linear_case *c, const char *problem)
{
    int n = heddle_comm_size(comm), own = problem[0] != 0, first = 0;
    int *all = calloc((size_t)n, sizeof *all);
    if (all == NULL) {
        return HEDDLE_ERR_NOMEM;
    }
    heddle_status st = heddle_comm_allgather(comm, &own, all, sizeof own);
    while (st == HEDDLE_OK && first < n && !all[first]) {
        first++;
    }
    *failed = st == HEDDLE_OK && first < n;
    free(all);
    if (*failed && first == heddle_comm_rank(comm)) {
        char text[2048];
        linear_describe(text, sizeof text, c);
        fprintf(stderr, "heddle: mismatch: %s\nheddle: %s\n", text, problem);
    }
    return st;
}

static heddle_status verify_main(heddle_comm *comm, void *arg)
{
    const linear_request *r = arg;
    random_source source = {(uint64_t)r->seed};
    int count = r->random > 0 ? (int)r->random : 1, failed = 0;
    heddle_status st = HEDDLE_OK;
    linear_case c = r->problem;
    linear_errors errors;
    for (int i = 0; i < count && st == HEDDLE_OK && !failed; i++) {
        char problem[LINEAR_PROBLEM_BYTES] = "";
        linear_arrays global = {NULL};
        if (r->random > 0) {
            linear_draw(&c, &source, heddle_comm_size(comm), HEDDLE_DTYPE_COUNT);
        }
        st = linear_check(comm, &c, problem, &errors, r->save != NULL ? &global : NULL);
        st = st != HEDDLE_OK ? st : agree(&failed, comm, &c, problem);
        if (st == HEDDLE_OK && r->save != NULL && heddle_comm_rank(comm) == 0) {
            st = save_all(r, &global);
        }
        linear_free(&global);
    }
    if (st == HEDDLE_OK && failed) {
        cli_verdict(CLI_MISMATCH);
    } else if (st == HEDDLE_OK && heddle_comm_rank(comm) == 0) {
        if (r->random > 0) {
            printf("%d linear attention problems right on %s\n", count, heddle_comm_describe(comm));
            fflush(stdout);
        } else {
            st = print_result(&c, &errors, comm);
        }
    }
    return st;
}

static int make_directory(const char *path)
{
    struct stat info;
    return path == NULL ||
                   ((mkdir(path, 0777) == 0 || errno == EEXIST) && stat(path, &info) == 0 && S_ISDIR(info.st_mode))
               ? CLI_OK
               : cli_usage_error("--save: directory '%s' cannot be made", path);
}

int cli_verify_linear(int argc, char **argv)
{
    linear_request r = {.command = "heddle verify linear-attention", .transport = "auto", .seed = 1};
    heddle_comm_options options;
    int code = linear_parse(&r, argc, argv);
    if (code == CLI_OK && r.help) {
        fputs(usage, stdout);
        return CLI_OK;
    }
    code = code == CLI_OK ? make_directory(r.save) : code;
    if (code != CLI_OK) {
        return code;
    }
    linear_comm_options(&options, &r);
    return cli_with_ranks(r.transport, r.ranks > 0 ? (int)r.ranks : 4, argc, argv, &options, verify_main, &r);
}
