/* Ranks of a group are called by their numbers in the communicator that the user opened: in what a rank is told of
 * another one's mistake, whoever finds it. Of waits: test_deadlines.c. */
#include "case.h"
#include "check.h"
#include "living_things.h"

enum { HALF = 2, WORLD = 2 * HALF };

typedef struct mistake {
    const char *of; /* a living thing that is made well; NULL: none */
    const char *name;
    heddle_status (*make)(thing *t, heddle_comm *comm, const living *of, int is_wrong);
    const char *says; /* in the sentence of the one who made it */
} mistake;

static heddle_status null_data(thing *t, heddle_comm *comm, const living *of, int is_wrong)
{
    t->array[0].data = is_wrong ? NULL : t->data[0];
    return of->use(t, comm, of);
}

static heddle_status null_source(thing *t, heddle_comm *comm, const living *of, int is_wrong)
{
    heddle_status st;
    (void)comm;
    const float *src = is_wrong ? NULL : t->data[0];
    if (of->way == 0) {
        return heddle_reshard_execute(t->reshard, src, t->data[1], HEDDLE_NO_STREAM);
    }
    HD_TRY(heddle_reshard_start(t->reshard, src, t->data[1], HEDDLE_NO_STREAM));
    HD_TRY(heddle_reshard_wait(t->reshard));
out:
    return st;
}

static heddle_status null_projection(thing *t, heddle_comm *comm, const living *of, int is_wrong)
{
    heddle_status st =
        heddle_attention_set_projection(t->attention, is_wrong ? NULL : t->data[4], t->data[4], NULL, NULL);
    if (st != HEDDLE_OK) {
        heddle_ignore(heddle_comm_abort(comm, heddle_last_error()));
    }
    (void)of;
    return st != HEDDLE_OK ? st : of->use(t, comm, of);
}

static heddle_status null_x(thing *t, heddle_comm *comm, const living *of, int is_wrong)
{
    (void)of;
    (void)comm;
    return heddle_dense_pair_forward(t->pair, t->data[1], is_wrong ? NULL : t->data[0], HEDDLE_NO_STREAM);
}

/* `is_wrong`: another line, method or way of the same kind. */
static heddle_status other_thing(thing *t, heddle_comm *comm, const living *of, int is_wrong)
{
    living other = *of;
    other.line = is_wrong && of->make == make_reshard ? "f32[b=1 t=8 s=9] on [sp=2]: s@sp -> t@sp" : of->line;
    other.way = is_wrong && of->make != make_reshard ? of->way + (of->make == make_attention ? -1 : 1) : of->way;
    return of->make(t, comm, &other, 0);
}

static heddle_status other_parts(thing *t, heddle_comm *comm, const living *of, int is_wrong)
{
    const heddle_mesh mesh = {.naxes = 1, .axis = {{"dp", HALF}}};
    const heddle_bucket_part part = {t->data[0], t->data[1], is_wrong ? 41 : 40, 1};
    heddle_bucket_options options;
    (void)of;
    heddle_bucket_options_init(&options);
    options.sum_axes = 1;
    return heddle_bucket_create(&t->bucket, comm, &mesh, &part, 1, &options);
}

static heddle_status null_part(thing *t, heddle_comm *comm, const living *of, int is_wrong)
{
    const heddle_mesh mesh = {.naxes = 1, .axis = {{"dp", HALF}}};
    const heddle_bucket_part part = {is_wrong ? NULL : t->data[0], t->data[1], 40, 1};
    heddle_bucket_options options;
    (void)of;
    heddle_bucket_options_init(&options);
    options.sum_axes = 1;
    return heddle_bucket_create(&t->bucket, comm, &mesh, &part, 1, &options);
}

static heddle_status negative_parts(thing *t, heddle_comm *comm, const living *of, int is_wrong)
{
    const heddle_mesh mesh = {.naxes = 1, .axis = {{"dp", HALF}}};
    const heddle_bucket_part part = {t->data[0], t->data[1], 40, 1};
    (void)of;
    return heddle_bucket_create(&t->bucket, comm, &mesh, &part, is_wrong ? -1 : 1, NULL);
}

static heddle_status endless_part(thing *t, heddle_comm *comm, const living *of, int is_wrong)
{
    const heddle_mesh mesh = {.naxes = 1, .axis = {{"dp", HALF}}};
    const heddle_bucket_part part = {t->data[0], t->data[1], is_wrong ? INT64_MAX : 40, 1};
    (void)of;
    return heddle_bucket_create(&t->bucket, comm, &mesh, &part, 1, NULL);
}

static heddle_status no_schedule(thing *t, heddle_comm *comm, const living *of, int is_wrong)
{
    heddle_session *made = NULL;
    (void)of;
    heddle_status st = heddle_session_create(&made, comm, is_wrong ? NULL : t->session.schedule, NULL);
    heddle_session_destroy(made);
    return st;
}

static heddle_status enter(thing *t, heddle_comm *comm, float *data, size_t capacity_bytes)
{
    heddle_status st;
    heddle_tensor x;
    session_of *f = &t->session;
    HD_TRY(heddle_tensor_init(&x, t->data[0], &f->shape, &f->mesh, &f->before, NULL, heddle_comm_rank(comm)));
    x.data = data;
    x.capacity_bytes = capacity_bytes;
    HD_TRY(heddle_session_enter(f->session, "s.attn", &x, NULL, HEDDLE_NO_STREAM));
out:
    return st;
}

static heddle_status null_tensor(thing *t, heddle_comm *comm, const living *of, int is_wrong)
{
    (void)of;
    return enter(t, comm, is_wrong ? NULL : t->data[0], sizeof t->data[0]);
}

static heddle_status short_tensor(thing *t, heddle_comm *comm, const living *of, int is_wrong)
{
    (void)of;
    return enter(t, comm, t->data[0], is_wrong ? 8 : sizeof t->data[0]);
}

static heddle_status other_bytes(thing *t, heddle_comm *comm, const living *of, int is_wrong)
{
    const size_t bytes = is_wrong ? 100 : 96;
    const int n = heddle_comm_size(comm), me = heddle_comm_rank(comm);
    if (of->way == 1) {
        return heddle_comm_allgather(comm, t->data[0], t->data[1], bytes);
    }
    if (of->way == 2) {
        return heddle_comm_allreduce_sum(comm, t->data[0], (int64_t)bytes, HEDDLE_F32);
    }
    return heddle_comm_sendrecv(comm, t->data[0], bytes, (me + 1) % n, t->data[1], 96, (me + n - 1) % n,
                                HEDDLE_NO_STREAM);
}

static heddle_status to_itself(thing *t, heddle_comm *comm, const living *of, int is_wrong)
{
    const int me = heddle_comm_rank(comm);
    (void)of;
    return heddle_comm_sendrecv(comm, t->data[0], is_wrong ? 100 : 96, me, t->data[1], 96, me, HEDDLE_NO_STREAM);
}

static const mistake mistakes[] = {
    {"switch", "src is NULL", null_source, "refuses the execution"},
    {"started switch", "src is NULL", null_source, "refuses the execution"},
    {"ulysses", "q is NULL", null_data, "is NULL on rank"},
    {"ring", "q is NULL", null_data, "is NULL on rank"},
    {"rsa projected", "e is NULL", null_projection, "is NULL on rank"},
    {"lasp", "q is NULL", null_data, "is NULL on rank"},
    {"scan", "q is NULL", null_data, "is NULL on rank"},
    {"dense pair", "x is NULL", null_x, "is NULL"},
    {"session", "no schedule", no_schedule, "is NULL on rank"},
    {"session", "data is NULL", null_tensor, "is NULL on rank"},
    {"session", "data is short", short_tensor, "part ends at element"},
    {"allgather", "other bytes", other_bytes, ""},
    {"allreduce", "other elements", other_bytes, ""},
    {"sendrecv", "other bytes", other_bytes, "expects"},
    {"sendrecv", "other bytes to itself", to_itself, "sends itself"},
    {"-switch", "another line", other_thing, "asks for another"},
    {"-rsa", "another method", other_thing, "asks for another"},
    {"-lasp", "another method", other_thing, "asks for another"},
    {"-bucket", "another way", other_thing, "asks for another"},
    {"-bucket", "other parts", other_parts, "asks for another"},
    {"-bucket", "a part that is NULL", null_part, "is NULL on rank"},
    {"-bucket", "fewer parts than none", negative_parts, "nparts is -1 on rank"},
    {"-bucket", "an endless part", endless_part, "on rank"},
};
enum { MISTAKES = sizeof mistakes / sizeof *mistakes };

static const living *find(const char *name)
{
    for (int i = 0; i < LIVING; i++) {
        if (strcmp(all_living[i].name, name) == 0) {
            return &all_living[i];
        }
    }
    return NULL;
}

/* What a sentence calls a rank; -1: nothing. `*strange`: it names one that is not of the group. */
static int named(int *strange)
{
    int rank, first = -1;
    *strange = 0;
    for (const char *at = heddle_last_error(); (at = strstr(at, "rank ")) != NULL; at++) {
        if (sscanf(at, "rank %d", &rank) == 1) {
            first = first < 0 ? rank : first;
            *strange |= rank < HALF;
        }
    }
    return first;
}

typedef struct asked {
    const mistake *mistake;
    int wrong; /* in the group */
} asked;

static heddle_status one_is_wrong(heddle_comm *comm, const asked *a)
{
    const mistake *m = a->mistake;
    const int is_made = m->of[0] != '-', is_wrong = heddle_comm_rank(comm) == a->wrong;
    const living *of = find(m->of + !is_made);
    heddle_status st = HEDDLE_OK;
    int strange = 0;
    thing *t = calloc(1, sizeof *t);
    CHECK(t != NULL && of != NULL && of->ranks == HALF);
    HD_TRY(is_made ? of->make(t, comm, of, 0) : HEDDLE_OK);
    st = m->make(t, comm, of, is_wrong);
    const int first = named(&strange);
    CHECK(st != HEDDLE_OK || !is_wrong); /* some are the wrong rank's own matter */
    CHECK(st == HEDDLE_OK || !strange);
    CHECK(!is_wrong || strstr(heddle_last_error(), m->says) != NULL);
    CHECK(st == HEDDLE_OK || is_wrong || first >= HALF);
    st = HEDDLE_OK;
out:
    unmake(t);
    return st;
}

static heddle_status upper_half(heddle_comm *comm, void *arg)
{
    const heddle_mesh mesh = {.naxes = 2, .axis = {{"half", 2}, {"in", HALF}}};
    heddle_comm *group = NULL;
    heddle_status st;
    HD_TRY(heddle_comm_axis_group(&group, comm, &mesh, 1));
    st = heddle_comm_rank(comm) < HALF ? HEDDLE_OK : one_is_wrong(group, arg);
    if (heddle_comm_rank(comm) == HALF + ((const asked *)arg)->wrong && st == HEDDLE_OK) {
        heddle_ignore(heddle_comm_abort(comm, "done")); /* whoever still waits for the wrong one */
    }
out:
    heddle_comm_destroy(group);
    return st;
}

HD_CASE(mistakes_are_of_ranks_of_the_users_communicator)
{
    for (int i = 0; i < 2 * MISTAKES; i++) {
        asked a = {&mistakes[i / 2], i % 2};
        heddle_status st = heddle_run_ranks(WORLD, "threads", upper_half, &a);
        if (st != HEDDLE_OK) {
            fail_msg("%s: %s, rank %d: %s", a.mistake->of, a.mistake->name, HALF + a.wrong, heddle_last_error());
        }
    }
}
