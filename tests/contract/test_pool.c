/* Arrays of a pool: what they are, that they are handed out again and when they are freed, who may give them back, and
 * how long they live. */
#include "case.h"
#include "check.h"
#include "draw.h"
#include "left_over.h"

#include "runtime/base/base.h"

#include <heddle/dlpack.h>
#include <heddle/heddle.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, GIVERS = 3, ARRAYS = 64 };

static heddle_dl_managed *bytes_of(heddle_pool *pool, int64_t bytes)
{
    heddle_dl_managed *array = NULL;
    HD_OK(heddle_pool_take(&array, pool, HEDDLE_U8, 1, &bytes));
    return array;
}

typedef struct home {
    heddle_comm *comm;
    heddle_pool *pool;
} home;

/* One rank, whose buffers lie in an arena. */
static home open_home(int64_t arena_bytes)
{
    home h;
    char key[40];
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.arena_bytes = arena_bytes;
    snprintf(key, sizeof key, "pool-%d", (int)getpid());
    HD_OK(heddle_comm_join(&h.comm, key, 0, 1, &options));
    HD_OK(heddle_pool_create(&h.pool, h.comm));
    return h;
}

static void close_home(home h)
{
    heddle_pool_destroy(h.pool);
    heddle_comm_destroy(h.comm);
}

HD_CASE(says_what_it_is)
{
    static const struct {
        heddle_dtype dtype;
        int code, bits;
    } types[] = {{HEDDLE_F64, 2, 64}, {HEDDLE_BF16, 4, 16}, {HEDDLE_BOOL, 6, 8}, {HEDDLE_F8E5M2, 12, 8}};
    const int64_t len[] = {3, 5, 7};
    home h = open_home(0);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        heddle_dl_managed *array = NULL;
        HD_OK(heddle_pool_take(&array, h.pool, types[i].dtype, 3, len));
        const struct heddle_dl_tensor *t = &array->tensor;
        assert_int_equal(t->device_type, HEDDLE_DL_CPU);
        assert_int_equal(t->device_id + t->byte_offset, 0);
        assert_int_equal(t->code, types[i].code);
        assert_int_equal(t->bits, types[i].bits);
        assert_int_equal(t->lanes, 1);
        assert_int_equal(t->ndim, 3);
        assert_memory_equal(t->shape, len, sizeof len);
        assert_memory_equal(t->strides, ((int64_t[]){35, 7, 1}), sizeof len);
        assert_int_equal((uintptr_t)t->data % PAGE, 0);
        memset(t->data, 1, (size_t)(3 * 5 * 7 * types[i].bits / 8));
        array->deleter(array);
    }
    assert_int_equal(heddle_pool_held_bytes(h.pool), PAGE);
    heddle_dl_managed *empty = NULL, *scalar = NULL;
    HD_OK(heddle_pool_take(&empty, h.pool, HEDDLE_F32, 2, (const int64_t[]){0, 9}));
    HD_OK(heddle_pool_take(&scalar, h.pool, HEDDLE_F32, 0, NULL));
    assert_int_equal(scalar->tensor.ndim, 0);
    heddle_pool_give_back(empty);
    HD_OK(heddle_pool_take(&empty, h.pool, HEDDLE_F32, 3, (const int64_t[]){0, INT64_MAX / 2, INT64_MAX / 2}));
    assert_int_equal(empty->tensor.shape[2], INT64_MAX / 2);
    heddle_pool_give_back(empty);
    heddle_pool_give_back(scalar);
    heddle_pool_give_back(NULL);
    close_home(h);
}

HD_CASE(is_handed_out_again)
{
    home h = open_home(0);
    heddle_dl_managed *kept = bytes_of(h.pool, 3 * PAGE), *array = bytes_of(h.pool, 104 * PAGE);
    const void *at = array->tensor.data;
    const size_t held = heddle_pool_held_bytes(h.pool);
    assert_int_equal(held, 107 * PAGE);
    array->deleter(array);
    array = bytes_of(h.pool, 97 * PAGE); /* an eighth less is as large */
    assert_ptr_equal(array->tensor.data, at);
    assert_int_equal(heddle_pool_held_bytes(h.pool), held);
    heddle_dl_managed *other = bytes_of(h.pool, 97 * PAGE);
    assert_true(other->tensor.data != at);
    array->deleter(array);
    at = other->tensor.data;
    other->deleter(other);
    array = bytes_of(h.pool, 97 * PAGE);
    assert_ptr_equal(array->tensor.data, at); /* the one that came back last */
    array->deleter(array);
    array = bytes_of(h.pool, 96 * PAGE); /* another size */
    assert_true(heddle_pool_held_bytes(h.pool) > held + 104 * PAGE);
    array->deleter(array);
    heddle_pool_trim(h.pool);
    assert_int_equal(heddle_pool_held_bytes(h.pool), 3 * PAGE);
    kept->deleter(kept);
    close_home(h);
}

/* Given back once more the memory would be handed out twice. */
HD_CASE(given_back_twice)
{
    home h = open_home(0);
    char why[80];
    heddle_dl_managed *array = bytes_of(h.pool, 5000), *two[2];
    snprintf(why, sizeof why, "8192 bytes at %p, is given back a second time", array->tensor.data);
    HD_FAILS(HEDDLE_ERR_ARG, heddle_pool_create(NULL, h.comm)); /* another sentence */
    array->deleter(array);
    assert_null(strstr(heddle_last_error(), "second time"));
    array->deleter(array);
    assert_non_null(strstr(heddle_last_error(), why));
    two[0] = bytes_of(h.pool, 5000);
    two[1] = bytes_of(h.pool, 5000);
    assert_true(two[0]->tensor.data != two[1]->tensor.data);
    assert_int_equal(heddle_pool_held_bytes(h.pool), 4 * PAGE);
    heddle_pool_give_back(two[0]);
    HD_FAILS(HEDDLE_ERR_ARG, heddle_pool_create(NULL, h.comm));
    heddle_pool_give_back(two[0]); /* not taken in between */
    assert_non_null(strstr(heddle_last_error(), "second time"));
    heddle_pool_trim(h.pool);
    assert_int_equal(heddle_pool_held_bytes(h.pool), 2 * PAGE);
    two[1]->deleter(two[1]);
    close_home(h);
}

/* Lengths that vary, one array at a time: what is held stays within twice the largest, and what was not asked for
 * longest goes first. */
HD_CASE(holds_twice_what_was_lent)
{
    home h = open_home(0);
    for (int turn = 0; turn < 3; turn++) {
        for (int64_t pages = 1; pages < 200; pages++) {
            heddle_dl_managed *array = bytes_of(h.pool, (turn == 1 ? 200 - pages : pages) * PAGE);
            assert_true(heddle_pool_held_bytes(h.pool) <= 2 * 208 * PAGE);
            array->deleter(array);
        }
    }
    close_home(h);
    h = open_home(0);
    heddle_dl_managed *most = bytes_of(h.pool, 128 * PAGE); /* 256 may be held */
    most->deleter(most);
    void *at[3];
    for (int i = 0; i < 3; i++) { /* 64, 32, 16 beside the 128 */
        heddle_dl_managed *array = bytes_of(h.pool, (64 >> i) * PAGE);
        at[i] = array->tensor.data;
        array->deleter(array);
    }
    heddle_dl_managed *again = bytes_of(h.pool, 64 * PAGE), *more = bytes_of(h.pool, 48 * PAGE); /* the 128 goes */
    assert_ptr_equal(again->tensor.data, at[0]);
    assert_int_equal(heddle_pool_held_bytes(h.pool), (64 + 32 + 16 + 48) * PAGE);
    heddle_pool_give_back(again);
    heddle_pool_give_back(more);
    close_home(h);
}

HD_CASE(frees_before_it_fails)
{
    home h = open_home(16 << 20);
    const int64_t mb[] = {9, 10, 11, 9, 8, 11}; /* no two fit */
    for (size_t i = 0; i < sizeof mb / sizeof mb[0]; i++) {
        heddle_pool_give_back(bytes_of(h.pool, mb[i] << 20));
    }
    heddle_dl_managed *array = NULL;
    HD_FAILS(HEDDLE_ERR_NOMEM, heddle_pool_take(&array, h.pool, HEDDLE_U8, 1, &(int64_t){17 << 20}));
    HD_FAILS(HEDDLE_ERR_NOMEM, heddle_pool_take(&array, h.pool, HEDDLE_F64, 1, &(int64_t){INT64_MAX / 8}));
    HD_FAILS(HEDDLE_ERR_NOMEM,
             heddle_pool_take(&array, h.pool, HEDDLE_F64, 2, (const int64_t[]){INT64_MAX / 8, INT64_MAX / 8}));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_pool_take(&array, h.pool, HEDDLE_F64, 2, (const int64_t[]){3, -1}));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_pool_take(&array, h.pool, HEDDLE_DTYPE_COUNT, 0, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_pool_take(&array, h.pool, HEDDLE_U8, HEDDLE_MAX_DIMS + 1, (int64_t[9]){0}));
    assert_null(array);
    heddle_pool_give_back(bytes_of(h.pool, 11 << 20)); /* nothing was lost */
    close_home(h);
    h = open_home(64 << 20);
    HD_FAILS(HEDDLE_ERR_NOMEM, heddle_pool_take(&array, h.pool, HEDDLE_U8, 1, &(int64_t){1 << 30}));
    for (int64_t pages = 1; pages < 400; pages++) { /* what was not there to be lent allows nothing to be held */
        heddle_pool_give_back(bytes_of(h.pool, pages * PAGE));
        assert_true(heddle_pool_held_bytes(h.pool) <= 2 * 416 * PAGE);
    }
    close_home(h);
}

/* A peer may be in the middle of a copy to it. */
HD_CASE(hands_nothing_out_again_after_an_abort)
{
    home h = open_home(0);
    heddle_dl_managed *array = bytes_of(h.pool, 7 * PAGE), *other = bytes_of(h.pool, 7 * PAGE);
    const void *before[2] = {array->tensor.data, other->tensor.data};
    heddle_pool_give_back(array);
    heddle_ignore(heddle_comm_abort(h.comm, "enough"));
    heddle_pool_give_back(other);
    for (int i = 0; i < 3; i++) {
        array = bytes_of(h.pool, 7 * PAGE);
        assert_true(array->tensor.data != before[0] && array->tensor.data != before[1]);
        heddle_pool_give_back(array);
    }
    close_home(h);
}

/* --- other threads ------------------------------------------------------------------------------------------------ */

typedef struct givers {
    pthread_mutex_t lock;
    heddle_dl_managed *array[ARRAYS];
    int count, is_over;
} givers;

static heddle_dl_managed *next_array(givers *g, int *is_over)
{
    pthread_mutex_lock(&g->lock);
    heddle_dl_managed *array = g->count > 0 ? g->array[--g->count] : NULL;
    *is_over = g->is_over;
    pthread_mutex_unlock(&g->lock);
    return array;
}

static void *give(void *arg)
{
    for (int is_over = 0; !is_over;) {
        heddle_dl_managed *array = next_array(arg, &is_over);
        is_over &= array == NULL;
        if (array != NULL) {
            ((volatile unsigned char *)array->tensor.data)[0]++;
            array->deleter(array);
        }
    }
    return NULL;
}

static int hand_over(givers *g, heddle_dl_managed *array)
{
    pthread_mutex_lock(&g->lock);
    int has_room = g->count < ARRAYS;
    if (has_room) {
        g->array[g->count++] = array;
    }
    pthread_mutex_unlock(&g->lock);
    return has_room;
}

/* One thread takes, others give back, also while the pool ends and the communicator goes on and ends. */
HD_CASE(any_thread_gives_back)
{
    for (int turn = 0; turn < hd_rounds(20); turn++) {
        givers g = {.lock = PTHREAD_MUTEX_INITIALIZER};
        pthread_t thread[GIVERS];
        const holdings before = holdings_now();
        home h = open_home(0);
        for (int i = 0; i < GIVERS; i++) {
            assert_int_equal(pthread_create(&thread[i], NULL, give, &g), 0);
        }
        for (int i = 0; i < 2000; i++) {
            heddle_dl_managed *array = bytes_of(h.pool, random_between(&drawn, 1, 3 * PAGE));
            if (!hand_over(&g, array)) {
                array->deleter(array);
            }
        }
        heddle_pool_destroy(h.pool);
        for (int i = 0; i < 20; i++) {
            void *buffer = NULL;
            HD_OK(heddle_buffer_alloc(&buffer, h.comm, PAGE, HEDDLE_SPACE_HOST));
            heddle_buffer_free(h.comm, buffer);
        }
        heddle_comm_destroy(h.comm);
        pthread_mutex_lock(&g.lock);
        g.is_over = 1;
        pthread_mutex_unlock(&g.lock);
        for (int i = 0; i < GIVERS; i++) {
            pthread_join(thread[i], NULL);
        }
        assert_nothing_left(before);
    }
}

HD_CASE(outlives_pool_and_communicator)
{
    const holdings before = holdings_now();
    home h = open_home(0);
    heddle_dl_managed *array[4];
    void *buffer = NULL;
    HD_OK(heddle_buffer_alloc(&buffer, h.comm, PAGE, HEDDLE_SPACE_HOST));
    for (int i = 0; i < 4; i++) {
        array[i] = bytes_of(h.pool, 5000 * (i + 1));
        memset(array[i]->tensor.data, i, 5000 * (size_t)(i + 1));
    }
    heddle_pool_give_back(array[0]);
    heddle_pool_destroy(h.pool);
    heddle_pool_give_back(array[1]);
    heddle_comm_destroy(h.comm);
    heddle_pool_give_back(array[3]);
    heddle_buffer_free(h.comm, buffer);
    for (int k = 0; k < 15000; k++) {
        assert_int_equal(((unsigned char *)array[2]->tensor.data)[k], 2);
    }
    heddle_pool_give_back(array[2]);
    assert_nothing_left(before);
    heddle_pool_destroy(NULL);
}

HD_CASE(a_fork_takes_nothing)
{
    home h = open_home(0);
    heddle_dl_managed *array = bytes_of(h.pool, 5), *other = NULL;
    pid_t child = fork();
    if (child == 0) {
        int ok = heddle_pool_take(&other, h.pool, HEDDLE_U8, 1, &(int64_t){5}) == HEDDLE_ERR_ARG &&
                 strstr(heddle_last_error(), "fork") != NULL;
        heddle_pool_destroy(h.pool);
        heddle_comm_destroy(h.comm);
        heddle_pool_give_back(array);
        _exit(ok ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    memset(array->tensor.data, 1, 5);
    heddle_pool_give_back(array);
    assert_ptr_equal(bytes_of(h.pool, 5), array);
    heddle_pool_give_back(array);
    close_home(h);
}

/* --- reshards ----------------------------------------------------------------------------------------------------- */

static heddle_status switched(heddle_reshard *plan, heddle_pool *pool, const heddle_box *from, const heddle_box *to)
{
    heddle_status st = HEDDLE_OK;
    heddle_dl_managed *y = NULL;
    int32_t x[7 * 5 * 3] = {0};
    for (int64_t i = 0; i < from->len[0] * 15; i++) {
        x[i] = (int32_t)(from->lo[0] * 15 + i);
    }
    HD_TRY(heddle_reshard_execute_pooled(&y, plan, x, pool, HEDDLE_NO_STREAM));
    const struct heddle_dl_tensor *made = &y->tensor;
    CHECK(made->ndim == 3 && made->shape[0] == 3 && made->shape[1] == to->len[1] && made->shape[2] == 7);
    CHECK(made->code == 0 && made->bits == 32);
    for (int64_t i = 0; i < 3 * to->len[1] * 7; i++) { /* c, s, t */
        const int64_t c = i / (to->len[1] * 7), s = i / 7 % to->len[1] + to->lo[1], t = i % 7;
        CHECK(((int32_t *)made->data)[i] == t * 15 + s * 3 + c);
    }
out:
    heddle_pool_give_back(y);
    return st;
}

HD_RANK_CASE(reshards_into_it, "1 threads", "2 shm", "3 threads", "3 shm")
{
    heddle_status st = HEDDLE_OK;
    char text[80];
    heddle_box from, to;
    heddle_reshard_line line;
    heddle_reshard_options options;
    heddle_reshard *plan = NULL, *strided = NULL;
    heddle_pool *pool = NULL;
    heddle_dl_managed *y = NULL;
    heddle_reshard_options_init(&options);
    options.memory = HEDDLE_MEMORY_ANY;
    snprintf(text, sizeof text, "i32[t=7 s=5 c=3] on [sp=%d]: t@sp -> s@sp as c,s,t", heddle_comm_size(comm));
    HD_TRY(heddle_reshard_parse(&line, text));
    HD_TRY(heddle_layout_box(&from, &line.shape, &line.mesh, &line.from, heddle_comm_rank(comm)));
    HD_TRY(heddle_layout_box(&to, &line.shape, &line.mesh, &line.to, heddle_comm_rank(comm)));
    HD_TRY(heddle_pool_create(&pool, comm));
    HD_TRY(heddle_reshard_create_line(&plan, comm, &line, &options));
    for (int round = 0; round < 3; round++) {
        HD_TRY(switched(plan, pool, &from, &to));
    }
    const size_t held = heddle_pool_held_bytes(pool);
    CHECK(heddle_reshard_execute_pooled(&y, plan, NULL, pool, HEDDLE_NO_STREAM) == HEDDLE_ERR_ARG); /* all ranks */
    CHECK(y == NULL && heddle_pool_held_bytes(pool) == held);
    HD_TRY(switched(plan, pool, &from, &to));
    CHECK(heddle_pool_held_bytes(pool) == held);
    options.dst_stride_elems = (const int64_t[]){1000, 50, 1};
    HD_TRY(heddle_reshard_create_line(&strided, comm, &line, &options));
    CHECK(heddle_reshard_execute_pooled(&y, strided, NULL, pool, HEDDLE_NO_STREAM) == HEDDLE_ERR_ARG);
    CHECK(strstr(heddle_last_error(), "strides of dst") != NULL);
    HD_TRY(heddle_comm_barrier(comm));
out:
    heddle_reshard_destroy(plan);
    heddle_reshard_destroy(strided);
    heddle_pool_destroy(pool);
    return st;
}
