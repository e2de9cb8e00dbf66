/* Memory of blocks on a device. */
#include "runtime/block/device/device.h"

#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/move/device_list.h"

#include <stdio.h>

heddle_status hd_on_room_make(hd_on_room **out, heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    hd_on_room *room = NULL;
    HD_TRY(hd_alloc((void **)&room, 1, sizeof *room, "workspace of blocks"));
    room->owners = 1;
    room->comm = comm;
    room->device = hd_comm_device(comm);
    HD_TRY(hd_device_load_kernels(room->device)); /* not in a call, while kernels of other ranks may wait */
    HD_TRY(hd_products_open(&room->products, room->device, NULL));
    HD_TRY(hd_enqueued_open(&room->used, room->device));
    room->used.names = (hd_enqueued_names){hd_comm_rank_name(comm, heddle_comm_rank(comm)), "last launch", "block", ""};
    HD_TRY(hd_enqueued_open(&room->copies, room->device));
    room->copies.names = (hd_enqueued_names){room->used.names.rank, "copy", "block's weights", ""};
    HD_TRY(room->device->library->stream_create(&room->stream, room->device->number));
    *out = room;
    room = NULL;
out:
    hd_on_room_leave(room);
    return st;
}

heddle_status hd_on_room_settle(hd_on_room *room)
{
    heddle_status st = hd_enqueued_end(&room->copies, room->stream, HEDDLE_OK);
    return st == HEDDLE_OK
               ? hd_enqueued_wait(&room->copies, hd_comm_deadline_ns(room->comm, 0) + HD_DEVICE_GRACE_NS, NULL, NULL)
               : st;
}

static int is_of_pass(const hd_on_room *room, heddle_stream stream)
{
    return room->is_in_pass && stream == room->pass;
}

/* A graph cannot wait for what is outside of it. */
heddle_status hd_on_room_begin(int *captures, hd_on_room *room, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    *captures = room->captures;
    if (is_of_pass(room, stream)) {
        return HEDDLE_OK;
    }
    HD_TRY(room->device->library->stream_captures(captures, room->device->number, stream));
    room->used.is_captured |= *captures;
    st = *captures ? HEDDLE_OK : hd_enqueued_order(&room->used, stream);
out:
    return st;
}

heddle_status hd_on_room_end(hd_on_room *room, int captures, heddle_stream stream, heddle_status st)
{
    if (captures) {
        return st;
    }
    if (is_of_pass(room, stream)) {
        hd_enqueued_end_later(&room->used, stream);
        return st;
    }
    room->is_in_pass = room->used.may_ask_again = 0; /* what the pass still has comes behind this, call by call */
    return hd_enqueued_end(&room->used, stream, st);
}

heddle_status hd_on_upload(hd_on_room *room, void *dst, const void *src, size_t bytes)
{
    return hd_enqueued_upload(&room->copies, dst, src, (int64_t)bytes, room->stream,
                              hd_comm_deadline_ns(room->comm, 0) + HD_DEVICE_GRACE_NS);
}

int hd_on_room_is_idle(hd_on_room *room)
{
    return hd_enqueued_has_ended(&room->used, hd_comm_deadline_ns(room->comm, 0) + HD_DEVICE_GRACE_NS);
}

int hd_on_room_lets_free(hd_on_room *room)
{
    const hd_sentence why = hd_sentence_keep(); /* of the failure because of which memory is freed, say */
    const int is_idle =
        hd_enqueued_lets_free(&room->used, room->device, hd_comm_deadline_ns(room->comm, 0) + HD_DEVICE_GRACE_NS);
    heddle_ignore(hd_sentence_say(&why, HEDDLE_OK));
    return is_idle;
}

static void let_go(hd_on_room *room, void *memory)
{
    if (memory != NULL && hd_on_room_lets_free(room)) {
        hd_device_release(room->device, memory);
    }
}

void hd_on_room_leave(hd_on_room *room)
{
    if (room == NULL || --room->owners > 0) {
        return;
    }
    let_go(room, room->memory);
    hd_products_close(room->products);
    hd_enqueued_close(&room->used);
    hd_enqueued_close(&room->copies);
    if (room->stream != HEDDLE_NO_STREAM) {
        room->device->library->stream_destroy(room->stream, room->device->number);
    }
    hd_free(room);
}

heddle_status hd_on_need_no_capture(const hd_on_room *room, size_t bytes, heddle_stream stream, const char *what)
{
    int captures = 0;
    heddle_status st = room->device->library->stream_captures(&captures, room->device->number, stream);
    return st == HEDDLE_OK && captures
               ? hd_fail(HEDDLE_ERR_ARG,
                         "%s takes %zu bytes of device %s, and its stream is being captured, which allows no "
                         "allocation: heddle_block_reserve before",
                         what, bytes, room->device->name)
               : st;
}

heddle_status hd_on_reserve(hd_on_room *room, void **memory, size_t *held_bytes, size_t bytes, heddle_stream stream,
                            const char *what)
{
    heddle_status st = HEDDLE_OK;
    void *larger = NULL;
    if (*held_bytes >= bytes) {
        return HEDDLE_OK;
    }
    HD_TRY(hd_on_need_no_capture(room, bytes, stream, what));
    let_go(room, *memory);
    *memory = NULL;
    *held_bytes = 0;
    HD_TRY(hd_device_alloc(room->device, &larger, bytes, HD_DEVICE_FOR_OWN));
    *memory = larger;
    *held_bytes = bytes;
out:
    return st == HEDDLE_OK ? st : hd_fail_prefix(st, "%s", what);
}

heddle_status hd_on_room_reserve(hd_on_room *room, size_t bytes, heddle_stream stream)
{
    void *memory = room->memory;
    heddle_status st = hd_on_reserve(room, &memory, &room->bytes, bytes, stream, "a block's workspace");
    room->memory = memory;
    return st;
}

enum { MOST_PRODUCTS = 64 /* that blocks which share a workspace have: three kinds of stages have not half as many */ };

/* Of those that both have taken. */
static int differ(const hd_product_way *a, const hd_product_way *b)
{
    for (int i = 0; i < MOST_PRODUCTS && a[i].form != 0; i++) {
        for (int j = 0; j < MOST_PRODUCTS && b[j].form != 0; j++) {
            if (a[i].form == b[j].form && a[i].way != b[j].way) {
                return 1;
            }
        }
    }
    return 0;
}

heddle_status hd_on_agree(const heddle_block *block, heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    hd_products *products = block->on->room->products;
    const int ranks = heddle_comm_size(comm);
    hd_product_way mine[MOST_PRODUCTS] = {{0, 0}}, *all = NULL;
    char why[80] = "";
    hd_products_ways(mine, MOST_PRODUCTS, products);
    HD_TRY(hd_alloc((void **)&all, (size_t)ranks, sizeof mine, "how ranks carry out products"));
    HD_TRY(heddle_comm_allgather(comm, mine, all, sizeof mine));
    for (int r = 0; r < ranks; r++) {
        for (int other = r + 1; other < ranks && why[0] == 0; other++) {
            if (differ(all + r * MOST_PRODUCTS, all + other * MOST_PRODUCTS)) {
                snprintf(why, sizeof why, "ranks %d and %d would carry them out otherwise", r, other);
            }
        }
    }
    if (why[0] != 0) {
        hd_products_use_own(products, why);
    }
out:
    hd_free(all);
    return st;
}
