/* Buffers of a communicator that are handed out again.
 *
 * What is given back goes on a stack that any thread may push to; the thread that uses the pool takes the whole stack
 * away before it looks for a free block. A pool that is destroyed leaves a mark on its stack, and whoever finds that
 * frees the block himself. The last one frees the pool.
 */
#include "runtime/comm/comm_private.h"

#include <heddle/dlpack.h>
#include <heddle/pool.h>

enum { ROOMS = 8 * 64, ROOM_BYTES = 4096 };

typedef struct hd_pooled {
    struct heddle_dl_managed array; /* what the caller has; its context is this */
    int64_t len[HEDDLE_MAX_DIMS], stride_elems[HEDDLE_MAX_DIMS];
    heddle_pool *pool;
    struct hd_pooled *next; /* on the stack, or free */
    _Atomic int is_out;     /* 1: the caller has it */
    int room;
    size_t bytes;
} hd_pooled;

/* Free blocks of one size. */
typedef struct hd_room {
    hd_pooled *first;
    int64_t asked; /* when an array of this size was last asked for */
} hd_room;

struct heddle_pool {
    heddle_comm *comm; /* without parent */
    hd_group *group;
    _Atomic(hd_pooled *) returned;
    size_t held_bytes, free_bytes, most_lent_bytes;
    int64_t now;          /* arrays taken so far */
    int64_t lent;         /* arrays that have not come back */
    _Atomic int64_t left; /* of a pool that is destroyed: those, as far as they are counted */
    hd_room room[ROOMS];
};

static hd_pooled destroyed; /* on the stack: the pool is */

/* So many bytes and up to an eighth more, in pages: sizes from 9 to 16 times a power of two. */
static int room_of(size_t *bytes)
{
    size_t pages = (*bytes + ROOM_BYTES - 1) / ROOM_BYTES + (*bytes == 0), last = pages - 1;
    int shift = last > 15 ? 63 - __builtin_clzll((unsigned long long)last) - 3 : 0;
    size_t steps = (last >> shift) + 1;
    *bytes = (steps << shift) * ROOM_BYTES;
    return 8 * shift + (int)steps;
}

static void free_block(heddle_pool *pool, hd_pooled *block)
{
    if (hd_group_release(pool->group, block->array.tensor.data)) {
        hd_comm_drop(pool->comm, pool->group);
    }
    hd_free(block);
}

/* Frees what no array lies in, the sizes first that were not asked for longest, until no more is held. */
static void shrink(heddle_pool *pool, size_t most_bytes)
{
    while (pool->held_bytes > most_bytes && pool->free_bytes > 0) {
        hd_room *oldest = NULL;
        for (hd_room *r = pool->room; r < pool->room + ROOMS; r++) {
            oldest = r->first != NULL && (oldest == NULL || r->asked < oldest->asked) ? r : oldest;
        }
        hd_pooled *block = oldest->first;
        oldest->first = block->next;
        pool->held_bytes -= block->bytes;
        pool->free_bytes -= block->bytes;
        free_block(pool, block);
    }
}

/* What came back last is taken first: it is warm. */
static void take_back(heddle_pool *pool, hd_pooled *mark)
{
    if (mark == NULL && atomic_load_explicit(&pool->returned, memory_order_relaxed) == NULL) {
        return;
    }
    hd_pooled *next, *first = NULL, *block = atomic_exchange(&pool->returned, mark);
    for (; block != NULL; block = next) {
        next = block->next;
        block->next = first;
        first = block;
    }
    for (block = first; block != NULL; block = next) {
        hd_room *room = &pool->room[block->room];
        next = block->next;
        block->next = room->first;
        room->first = block;
        pool->free_bytes += block->bytes;
        pool->lent--;
    }
}

/* --- giving back: any thread -------------------------------------------------------------------------------------- */

/* `more` arrays are counted (0: all are by now), less those that came back since. */
static void count_left(heddle_pool *pool, int64_t more)
{
    if (atomic_fetch_add(&pool->left, more) + more == 0) {
        hd_free(pool);
    }
}

void heddle_pool_give_back(heddle_dl_managed *array)
{
    if (array == NULL) {
        return;
    }
    hd_pooled *block = array->context;
    heddle_pool *pool = block->pool;
    if (!atomic_exchange(&block->is_out, 0)) {
        heddle_ignore(hd_fail(HEDDLE_ERR_ARG, "an array of a pool, %zu bytes at %p, is given back a second time",
                              block->bytes, block->array.tensor.data));
        return;
    }
    block->next = atomic_load(&pool->returned);
    while (block->next != &destroyed) {
        if (atomic_compare_exchange_weak(&pool->returned, &block->next, block)) {
            return;
        }
    }
    free_block(pool, block);
    count_left(pool, -1);
}

/* --- the thread that uses the pool -------------------------------------------------------------------------------- */

heddle_status heddle_pool_create(heddle_pool **out, heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    heddle_pool *pool = NULL;
    HD_TRY(HD_NEED(out, comm));
    HD_TRY(hd_group_owned(comm->group, "pool create"));
    HD_TRY(hd_alloc((void **)&pool, 1, sizeof *pool, "a pool"));
    pool->comm = comm->root;
    pool->group = comm->group;
    *out = pool;
out:
    return st;
}

/* Until all arrays are counted those that come back take the number below zero, which is not the end. */
void heddle_pool_destroy(heddle_pool *pool)
{
    if (pool == NULL || hd_group_is_fork(pool->group)) { /* a fork's arrays have nobody to go to */
        return;
    }
    take_back(pool, &destroyed);
    shrink(pool, 0);
    count_left(pool, pool->lent);
}

void heddle_pool_trim(heddle_pool *pool)
{
    if (pool != NULL) {
        take_back(pool, NULL);
        shrink(pool, 0);
    }
}

size_t heddle_pool_held_bytes(const heddle_pool *pool)
{
    return pool != NULL ? pool->held_bytes : 0;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* A rank has given up: peers that have not heard of it may be in the middle of a copy to what came back, so nothing of
 * it is handed out again. */
static void look_for_alarm(heddle_pool *pool)
{
    const hd_group *group = pool->group;
    if (__builtin_expect(atomic_load_explicit(&group->control[group->me]->alarm, memory_order_relaxed) != 0, 0)) {
        shrink(pool, 0);
    }
}

static heddle_status make_block(hd_pooled **out, heddle_pool *pool, int room, size_t bytes)
{
    heddle_status st = HEDDLE_OK;
    hd_pooled *block = NULL;
    void *memory = NULL;
    const size_t lent_bytes = pool->held_bytes - pool->free_bytes + bytes;
    shrink(pool, 2 * larger(pool->most_lent_bytes, lent_bytes) - bytes);
    HD_TRY(hd_alloc((void **)&block, 1, sizeof *block, "a pool"));
    st = heddle_buffer_alloc(&memory, pool->comm, bytes, HEDDLE_SPACE_HOST);
    if (st == HEDDLE_ERR_NOMEM && pool->free_bytes > 0) {
        shrink(pool, 0);
        st = heddle_buffer_alloc(&memory, pool->comm, bytes, HEDDLE_SPACE_HOST);
    }
    HD_TRY(st);
    *block = (hd_pooled){.pool = pool, .room = room, .bytes = bytes};
    block->array.tensor = (struct heddle_dl_tensor){
        .data = memory, .device_type = HEDDLE_DL_CPU, .lanes = 1, .shape = block->len, .strides = block->stride_elems};
    block->array.context = block;
    block->array.deleter = heddle_pool_give_back;
    pool->held_bytes += bytes;
    *out = block;
    block = NULL;
out:
    hd_free(block);
    return st;
}

static heddle_status check(size_t *bytes, const heddle_pool *pool, heddle_dtype dtype, int ndim, const int64_t *len)
{
    heddle_status st = hd_group_owned(pool->group, "pool take");
    const size_t elem_bytes = heddle_dtype_bytes(dtype);
    int64_t factor[HEDDLE_MAX_DIMS + 1] = {(int64_t)elem_bytes}, product = (int64_t)elem_bytes;
    if (st != HEDDLE_OK) {
        return st;
    }
    if (elem_bytes == 0 || ndim < 0 || ndim > HEDDLE_MAX_DIMS) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_pool_take: dtype %d, %d dims (0 to %d)", (int)dtype, ndim,
                       HEDDLE_MAX_DIMS);
    }
    int is_large = 0;
    for (int d = 0; d < ndim; d++) {
        if (len[d] < 0) {
            return hd_fail(HEDDLE_ERR_ARG, "heddle_pool_take: dim %d has %lld elements", d, (long long)len[d]);
        }
        factor[d + 1] = len[d];
        is_large |= __builtin_mul_overflow(product, len[d], &product);
    }
    if (is_large) { /* an extent of 0 behind it is none */
        st = hd_product(&product, "an array of a pool", ndim + 1, factor);
    }
    if (st == HEDDLE_OK && product > INT64_MAX / 4) {
        st = hd_fail(HEDDLE_ERR_NOMEM, "out of memory: an array of %lld bytes in a pool", (long long)product);
    }
    *bytes = (size_t)product;
    return st;
}

static void describe(hd_pooled *block, heddle_dtype dtype, int ndim, const int64_t *len)
{
    const unsigned type = heddle_dl_type(dtype);
    int64_t dense = 1;
    block->array.tensor.ndim = ndim;
    block->array.tensor.code = (uint8_t)(type >> 8);
    block->array.tensor.bits = (uint8_t)type;
    for (int d = ndim - 1; d >= 0; d--) {
        block->len[d] = len[d];
        block->stride_elems[d] = dense;
        if (__builtin_mul_overflow(dense, len[d], &dense)) { /* of an empty array: no stride means anything */
            dense = 0;
        }
    }
}

heddle_status heddle_pool_take(heddle_dl_managed **out, heddle_pool *pool, heddle_dtype dtype, int ndim,
                               const int64_t *len)
{
    heddle_status st = HEDDLE_OK;
    size_t bytes = 0;
    hd_pooled *block = NULL;
    HD_TRY(HD_NEED(out, pool));
    HD_TRY(ndim != 0 ? HD_NEED(len) : HEDDLE_OK);
    HD_TRY(check(&bytes, pool, dtype, ndim, len));
    take_back(pool, NULL);
    look_for_alarm(pool);
    const int index = room_of(&bytes);
    hd_room *room = &pool->room[index];
    room->asked = ++pool->now;
    if (room->first != NULL) {
        block = room->first;
        room->first = block->next;
        pool->free_bytes -= bytes;
    } else {
        HD_TRY(make_block(&block, pool, index, bytes));
    }
    atomic_store_explicit(&block->is_out, 1, memory_order_relaxed);
    pool->lent++;
    pool->most_lent_bytes = larger(pool->most_lent_bytes, pool->held_bytes - pool->free_bytes);
    describe(block, dtype, ndim, len);
    *out = &block->array;
out:
    return st;
}
