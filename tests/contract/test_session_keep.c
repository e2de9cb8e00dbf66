/* Switches into tensors of the caller's: a pass keeps every activation, and its gradients are right. */
#include "case.h"
#include "session_fixture.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS = STAGES * REPEAT, GAP = 2 };

/* The module of every stage, element by element, and its derivative by the input. */
static float module(float x)
{
    return 0.5F * x * x + 0.25F;
}

static float slope(float x)
{
    return x;
}

static float input(int64_t global)
{
    return (float)(global % 97) / 128.0F;
}

typedef struct pass {
    fixture f;
    heddle_comm *comm;
    int rank;
    heddle_tensor kept[STEPS + 1]; /* what every stage read; the last one is the output */
    void *memory[4 * (STEPS + 1)];
    int nmemory;
    void *buffer[STEPS + 1]; /* of heddle_buffer_alloc */
} pass;

/* Memory of three kinds: private, reachable by peers, private with gaps. */
static heddle_status give_memory(pass *p, heddle_tensor *x, int kind)
{
    const int last = x->shape.ndim - 1;
    if (kind % 3 == 1) {
        heddle_status st = placed_buffer(&x->data, p->comm, x->capacity_bytes + 1);
        p->buffer[kind] = x->data;
        return st;
    }
    for (int d = 0; kind % 3 == 2 && d <= last; d++) {
        x->stride_elems[d] *= GAP;
    }
    x->capacity_bytes *= kind % 3 == 2 ? GAP : 1;
    x->data = p->memory[p->nmemory++] = placed_alloc(p->comm, x->capacity_bytes);
    return HEDDLE_OK;
}

static float *element(const heddle_tensor *x, const heddle_box *box, int64_t i, int64_t *global)
{
    int64_t at = 0;
    locate(&at, global, x, box, i);
    return (float *)x->data + at;
}

static heddle_status box_of(heddle_box *out, const pass *p, const heddle_tensor *x)
{
    return heddle_layout_box(out, &p->f.info.shape, &p->f.info.mesh, &x->layout, p->rank);
}

/* y = module(x) in new private memory, dense. */
static heddle_status run_module(pass *p, heddle_tensor *x)
{
    heddle_box box;
    heddle_tensor y;
    int64_t global = 0;
    heddle_status st;
    HD_TRY(box_of(&box, p, x));
    void *memory = p->memory[p->nmemory++] = placed_alloc(p->comm, (size_t)heddle_box_elems(&box) * sizeof(float));
    HD_TRY(heddle_tensor_init(&y, memory, &x->shape, &p->f.info.mesh, &x->layout, NULL, p->rank));
    place(&y, &p->f);
    const heddle_tensor in = look_at(x, &p->f), out = look_at(&y, &p->f);
    for (int64_t i = 0; i < heddle_box_elems(&box); i++) {
        *element(&out, &box, i, &global) = module(*element(&in, &box, i, &global));
    }
    look_away(x, &in, &p->f);
    look_away(&y, &out, &p->f);
    *x = y;
out:
    return st;
}

static heddle_status forward(pass *p)
{
    heddle_tensor x = {0}, mine = {0};
    heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
    heddle_box box, told;
    int64_t global = 0;
    heddle_status st;
    HD_TRY(heddle_schedule_edge_at(&edge, p->f.schedule, 0));
    char text[HEDDLE_LINE_BYTES];
    HD_TRY(heddle_layout_format(text, sizeof text, &edge.from, &p->f.info.shape, &p->f.info.mesh));
    HD_TRY(make_x(&x, &p->f, text, p->rank));
    p->memory[p->nmemory++] = x.data;
    HD_TRY(box_of(&box, p, &x));
    const heddle_tensor image = look_at(&x, &p->f);
    for (int64_t i = 0; i < heddle_box_elems(&box); i++) {
        float *to = element(&image, &box, i, &global);
        *to = input(global);
    }
    look_away(&x, &image, &p->f);
    for (int k = 0; k <= STEPS; k++) {
        const char *stage = k < STEPS ? stages[k % STAGES] : "end";
        HD_TRY(heddle_session_expect(&mine, &told, p->f.session, stage));
        HD_TRY(give_memory(p, &mine, k));
        HD_TRY(heddle_session_enter(p->f.session, stage, &x, &mine, placed_stream));
        HD_TRY(box_of(&box, p, &x));
        CHECK(memcmp(&box.len, &told.len, sizeof box.len) == 0 && memcmp(&box.lo, &told.lo, sizeof box.lo) == 0);
        CHECK(heddle_layout_equal(&x.layout, &mine.layout, &p->f.info.mesh));
        p->kept[k] = x;
        HD_TRY(k < STEPS ? run_module(p, &x) : HEDDLE_OK);
    }
out:
    return st;
}

/* What stage k read, by the recurrence alone. */
static heddle_status check_kept(const pass *p)
{
    heddle_box box;
    heddle_status st = HEDDLE_OK;
    for (int k = 0; k <= STEPS; k++) {
        HD_TRY(box_of(&box, p, &p->kept[k]));
        const heddle_tensor image = look_at(&p->kept[k], &p->f);
        for (int64_t i = 0; i < heddle_box_elems(&box); i++) {
            int64_t global = 0;
            const float *got = element(&image, &box, i, &global);
            float wanted = input(global);
            for (int m = 0; m < k; m++) {
                wanted = module(wanted);
            }
            CHECK(*got == wanted);
        }
        look_away(&p->kept[k], &image, &p->f);
    }
out:
    return st;
}

static heddle_status backward(pass *p)
{
    heddle_tensor dx = p->kept[STEPS];
    heddle_box box;
    int64_t global = 0;
    heddle_status st;
    HD_TRY(box_of(&box, p, &dx));
    heddle_tensor image = look_at(&dx, &p->f);
    for (int64_t i = 0; i < heddle_box_elems(&box); i++) {
        *element(&image, &box, i, &global) = 1.0F; /* the output is the caller's own, too */
    }
    look_away(&dx, &image, &p->f);
    HD_TRY(heddle_session_backward(p->f.session, "end", &dx, NULL, placed_stream));
    for (int k = STEPS - 1; k >= 0; k--) {
        HD_TRY(box_of(&box, p, &dx));
        const heddle_tensor kept = look_at(&p->kept[k], &p->f);
        image = look_at(&dx, &p->f);
        for (int64_t i = 0; i < heddle_box_elems(&box); i++) {
            const float x = *element(&kept, &box, i, &global);
            *element(&image, &box, i, &global) *= slope(x);
        }
        look_away(&p->kept[k], &kept, &p->f);
        look_away(&dx, &image, &p->f);
        heddle_tensor mine = {0};
        HD_TRY(heddle_session_expect_backward(&mine, NULL, p->f.session, stages[k % STAGES]));
        mine.data = p->memory[p->nmemory++] = placed_alloc(p->comm, mine.capacity_bytes);
        HD_TRY(heddle_session_backward(p->f.session, stages[k % STAGES], &dx, &mine, placed_stream));
        CHECK(heddle_layout_equal(&dx.layout, &mine.layout, &p->f.info.mesh));
    }
    HD_TRY(box_of(&box, p, &dx));
    image = look_at(&dx, &p->f);
    for (int64_t i = 0; i < heddle_box_elems(&box); i++) {
        const float got = *element(&image, &box, i, &global);
        float x[STEPS], wanted = 1.0F;
        x[0] = input(global);
        for (int k = 1; k < STEPS; k++) {
            x[k] = module(x[k - 1]);
        }
        for (int k = STEPS - 1; k >= 0; k--) {
            wanted *= slope(x[k]);
        }
        CHECK(got == wanted);
    }
    look_away(&dx, &image, &p->f);
out:
    return st;
}

static heddle_status whole_pass(heddle_comm *comm, void *arg)
{
    pass p = {.comm = comm, .rank = heddle_comm_rank(comm)};
    heddle_status st;
    (void)arg;
    HD_TRY(set_up(&p.f, comm, 0, 1));
    HD_TRY(forward(&p));
    HD_TRY(check_kept(&p));
    HD_TRY(backward(&p));
out:
    tear_down(&p.f);
    for (int i = 0; i < p.nmemory; i++) {
        placed_free(comm, p.memory[i]);
    }
    for (int i = 0; i <= STEPS; i++) {
        heddle_buffer_free(comm, p.buffer[i]);
    }
    return st;
}

HD_CASE(keeps_all_activations)
{
    for (int ranks = 1; ranks <= 4; ranks++) {
        HD_OK(heddle_run_ranks(ranks, "threads", whole_pass, NULL));
        HD_OK(heddle_run_ranks(ranks, "shm", whole_pass, NULL));
    }
}

/* Without dst the second next switch writes over a result. */
HD_RANK_CASE(pointers_do_not_keep, "2 threads", "2 shm")
{
    fixture f = {0};
    heddle_tensor x = {0}, was = {0};
    heddle_box box;
    const int rank = heddle_comm_rank(comm);
    void *first = NULL, *mine = NULL, *copy = NULL;
    size_t bytes = 0;
    heddle_status st;
    HD_TRY(set_up_x(&f, &x, comm, 0, "t@sp"));
    mine = x.data;
    for (int k = 0; k < STEPS; k++) {
        const void *before = x.data;
        HD_TRY(heddle_session_enter(f.session, stages[k % STAGES], &x, NULL, placed_stream));
        HD_TRY(heddle_layout_box(&box, &f.info.shape, &f.info.mesh, &x.layout, rank));
        if (first == NULL && x.data != before && x.data != mine) {
            first = x.data;
            bytes = x.capacity_bytes;
            copy = malloc(bytes + 1);
            was = x;
            const heddle_tensor now = look_at(&was, &f);
            memcpy(copy, now.data, bytes);
            look_away(&was, &now, &f);
        }
        const heddle_tensor image = look_at(&x, &f);
        for (int64_t i = 0; i < heddle_box_elems(&box); i++) {
            ((float *)image.data)[i] += x.data == first ? 0.0F : 1.0F;
        }
        look_away(&x, &image, &f);
    }
    const heddle_tensor now = look_at(&was, &f);
    const int is_same = first == NULL || memcmp(now.data, copy, bytes) == 0;
    look_away(&was, &now, &f);
    CHECK(!is_same);
out:
    free(copy);
    placed_free(comm, mine);
    tear_down(&f);
    return st;
}

/* What cannot be written to is refused before anything moves, and the right tensor may follow. */
HD_RANK_CASE(refuses_what_it_cannot_write, "2 threads", "3 shm")
{
    fixture f = {0};
    heddle_tensor x = {0}, good = {0}, bad, far;
    const int rank = heddle_comm_rank(comm);
    void *mine = NULL, *memory = NULL;
    heddle_status st;
    HD_TRY(set_up_x(&f, &x, comm, 0, "c@sp"));
    mine = x.data;
    HD_TRY(heddle_session_expect(&good, NULL, f.session, "s.attn"));
    memory = good.data = placed_alloc(comm, good.capacity_bytes);
    bad = good;
    bad.layout = x.layout;
    CHECK(heddle_session_enter(f.session, "s.attn", &x, &bad, placed_stream) == HEDDLE_ERR_LAYOUT);
    CHECK(strstr(heddle_last_error(), "heddle_session_expect") != NULL);
    bad = good;
    bad.capacity_bytes--;
    CHECK(heddle_session_enter(f.session, "s.attn", &x, &bad, placed_stream) == HEDDLE_ERR_ARG);
    CHECK(strstr(heddle_last_error(), "dst->capacity_bytes") != NULL);
    bad = good;
    bad.stride_elems[2] = 0;
    CHECK(heddle_session_enter(f.session, "s.attn", &x, &bad, placed_stream) == HEDDLE_ERR_ARG);
    bad.stride_elems[2] = good.stride_elems[2] - 1; /* the ends of rows share memory */
    CHECK(heddle_session_enter(f.session, "s.attn", &x, &bad, placed_stream) == HEDDLE_ERR_ARG);
    CHECK(strstr(heddle_last_error(), "entering 's.attn': dst: stride of dim s is") != NULL);
    bad = good;
    bad.stride_elems[2] = (int64_t)1 << 60; /* 2^62 bytes and more */
    bad.capacity_bytes = SIZE_MAX;
    CHECK(heddle_session_enter(f.session, "s.attn", &x, &bad, placed_stream) == HEDDLE_ERR_ARG);
    CHECK(strstr(heddle_last_error(), "dst: stride of dim s is 1152921504606846976 elements") != NULL);
    far = x;
    far.stride_elems[2] = (int64_t)1 << 60;
    far.capacity_bytes = SIZE_MAX;
    CHECK(heddle_session_enter(f.session, "s.attn", &far, &good, placed_stream) == HEDDLE_ERR_ARG);
    CHECK(strstr(heddle_last_error(), "x: stride of dim s is 1152921504606846976 elements") != NULL);
    bad = good;
    bad.data = NULL;
    CHECK(heddle_session_enter(f.session, "s.attn", &x, &bad, placed_stream) == HEDDLE_ERR_ARG);
    bad = good;
    bad.space = placed_on_device(comm) ? HEDDLE_SPACE_HOST : HEDDLE_SPACE_DEVICE;
    bad.device = 0;
    CHECK(heddle_session_enter(f.session, "s.attn", &x, &bad, placed_stream) ==
          (placed_on_device(comm) ? HEDDLE_ERR_ARG : HEDDLE_ERR_UNSUPPORTED));
    CHECK(heddle_session_expect(&bad, NULL, f.session, "s.atn") == HEDDLE_ERR_ARG);
    CHECK(x.data == mine);
    HD_TRY(heddle_session_enter(f.session, "s.attn", &x, &good, placed_stream));
    CHECK(x.data == memory);
    HD_TRY(check_stamps(&x, &f, rank, 0));
out:
    placed_free(comm, memory);
    placed_free(comm, mine);
    tear_down(&f);
    return st;
}
