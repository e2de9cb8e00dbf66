/* Module-level switching, for the author of a backend: a "framework" with its own modules and its own memory runs a
 * spatial-temporal model on several ranks. The only calls between its modules are heddle_session_enter.
 *
 *     ./example_02_modules 4                 starts 4 ranks itself (processes of this host)
 *     mpirun -n 4 ./example_02_modules       joins the ranks that mpirun started
 */
#include <heddle/heddle.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the planner needs to know: the dims, and which stage mixes which of them. */
static const char model_text[] = "model: two-axes\n"
                                 "dtype: f32\n"
                                 "dims: {b: {size: 1, role: batch}, t: {size: 9, role: seq}, s: {size: 30, role: seq}, "
                                 "c: {size: 8, role: channel}}\n"
                                 "tensors: {x: [b, t, s, c]}\n"
                                 "repeat: 3\n"
                                 "stages:\n"
                                 "  - {name: space, kind: attention, over: s, heads: 1}\n"
                                 "  - {name: time, kind: attention, over: t, heads: 1}\n";
enum { LAYERS = 3, T = 1, S = 2, C = 3, ELEMS = 9 * 30 * 8 }; /* T S C: places of the dims in [b t s c] */

/* The framework's module: every element gets the mean over `dim` added. It needs `dim` whole on this rank and does not
 * care how the other dims are split. Its result is a new tensor in the framework's own memory; NULL: there is none. */
static float *mean_module(const float *x, const int64_t *len, int dim)
{
    const int64_t stride[4] = {0, len[S] * len[C], len[C], 1};
    float *y = malloc((size_t)(len[T] * len[S] * len[C]) * sizeof(float) + 1);
    for (int64_t i = 0; y != NULL && i < len[T] * len[S] * len[C]; i++) {
        const float *first = x + i - i / stride[dim] % len[dim] * stride[dim];
        float sum = 0;
        for (int64_t k = 0; k < len[dim]; k++) {
            sum += first[k * stride[dim]];
        }
        y[i] = x[i] + sum / (float)len[dim];
    }
    return y;
}

/* The forward pass. Without a session it is the framework as it was, on one rank. */
static heddle_status forward(heddle_session *session, heddle_tensor *x, const heddle_mesh *mesh, int rank)
{
    for (int i = 0; i < 2 * LAYERS; i++) {
        float *before = x->data;
        heddle_box box; /* which part of x this rank holds */
        heddle_status st = HEDDLE_OK;
        if (session != NULL) { /* the whole of the integration */
            st = heddle_session_enter(session, i % 2 == 0 ? "space" : "time", x, NULL, HEDDLE_NO_STREAM);
        }
        st = st ? st : heddle_layout_box(&box, &x->shape, mesh, &x->layout, rank);
        if (st != HEDDLE_OK) {
            return st;
        }
        x->data = mean_module(x->data, box.len, i % 2 == 0 ? S : T);
        free(before); /* ours again since enter returned; what enter gave out belongs to the session */
        if (x->data == NULL) {
            return heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for a module's result");
        }
    }
    return HEDDLE_OK;
}

static heddle_status rank_main(heddle_comm *comm, void *arg)
{
    heddle_model *model = NULL;
    heddle_schedule *schedule = NULL;
    heddle_session *session = NULL;
    heddle_schedule_info info = HEDDLE_EMPTY(heddle_schedule_info);
    heddle_session_counters moved = HEDDLE_EMPTY(heddle_session_counters);
    const heddle_mesh mesh = {.naxes = 1, .axis = {{.name = "sp", .size = heddle_comm_size(comm)}}};
    const heddle_mesh one = {.naxes = 1, .axis = {{.name = "sp", .size = 1}}};
    const heddle_layout whole = heddle_layout_replicated();
    const int rank = heddle_comm_rank(comm);
    heddle_tensor x, alone; /* the same input for all ranks together, and for this one alone */
    float *values = malloc(ELEMS * sizeof(float)), *copy = malloc(ELEMS * sizeof(float));
    (void)arg;
    if (values == NULL || copy == NULL) {
        free(values);
        free(copy);
        return heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for the input");
    }
    for (int i = 0; i < ELEMS; i++) {
        values[i] = copy[i] = (float)(i * 37 % 101) / 101.0F;
    }
    /* Once per model and machine: plan, and bind the plan to the ranks. */
    heddle_status st = heddle_model_parse(&model, model_text, strlen(model_text), "two-axes");
    st = st ? st : heddle_plan(&schedule, model, &mesh, NULL);
    st = st ? st : heddle_schedule_get_info(&info, schedule);
    st = st ? st : heddle_session_create(&session, comm, schedule, NULL);
    /* Once per forward pass. x may begin in any layout; here every rank has all of it. */
    st = st ? st : heddle_tensor_init(&x, values, &info.shape, &mesh, &whole, NULL, rank);
    st = st ? st : heddle_session_rewind(session);
    st = st ? st : forward(session, &x, &mesh, rank);
    float *last = st ? NULL : x.data;
    st = st ? st : heddle_session_enter(session, "end", &x, NULL, HEDDLE_NO_STREAM); /* whole again, on every rank */
    st = st ? st : heddle_session_get_counters(&moved, session);
    /* Is it what one rank computes? */
    st = st ? st : heddle_tensor_init(&alone, copy, &info.shape, &one, &whole, NULL, 0);
    st = st ? st : forward(NULL, &alone, &one, 0);
    if (st == HEDDLE_OK) {
        const int same = memcmp(x.data, alone.data, ELEMS * sizeof(float)) == 0;
        printf("rank %d: %lld enters, %lld switches, %lld bytes sent (planned %lld), %s one rank\n", rank,
               (long long)moved.enters, (long long)moved.switches, (long long)moved.bytes_sent,
               (long long)moved.bytes_planned, same ? "bitwise equal to" : "DIFFERENT from");
        st = same ? HEDDLE_OK : heddle_set_error(HEDDLE_ERR_INTERNAL, "the result differs from one rank's");
        free(alone.data);
    }
    free(last);
    heddle_session_destroy(session);
    heddle_schedule_destroy(schedule);
    heddle_model_destroy(model);
    return st;
}

int main(int argc, char **argv)
{
    heddle_comm *comm = NULL;
    heddle_status st;
    if (argc > 1) {
        st = heddle_run_ranks(atoi(argv[1]), "shm", rank_main, NULL);
    } else {
        st = heddle_comm_open(&comm, "auto", NULL); /* mpirun, srun, torchrun, or a single rank */
        st = st ? st : rank_main(comm, NULL);
        heddle_comm_destroy(comm);
    }
    if (st != HEDDLE_OK) {
        fprintf(stderr, "%s: %s\n", heddle_status_name(st), heddle_last_error());
    }
    return st != HEDDLE_OK;
}
