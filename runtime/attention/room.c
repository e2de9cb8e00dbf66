/* Rooms of attention objects. */
#include "runtime/attention/inner.h"

#include "runtime/base/base.h"

enum { ALIGNMENT = 64 };

heddle_status hd_room_make(hd_room **out, heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    hd_room *room = NULL;
    HD_TRY(hd_alloc((void **)&room, 1, sizeof *room, "workspace of attention"));
    *room = (hd_room){.owners = 1, .comm = comm};
    *out = room;
out:
    return st;
}

void hd_room_leave(hd_room *room)
{
    if (room == NULL || --room->owners > 0) {
        return;
    }
    for (int i = 0; i < HD_ROOM_PARTS; i++) {
        heddle_buffer_free(room->comm, room->part[i].memory);
    }
    hd_free(room);
}

heddle_status hd_room_want(hd_room_user *user, int part, void **at, int64_t bytes)
{
    if (user->npieces == HD_ROOM_PIECES) {
        return hd_fail(HEDDLE_ERR_INTERNAL, "an attention wants more than %d pieces of workspace", HD_ROOM_PIECES);
    }
    user->piece[user->npieces].at = at;
    user->piece[user->npieces].part = part;
    user->piece[user->npieces++].offset = user->bytes[part];
    user->wanted_bytes[part] += bytes;
    user->bytes[part] += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return HEDDLE_OK;
}

static heddle_status grow(hd_room *room, int part, int64_t bytes)
{
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    if (room->part[part].memory != NULL && room->part[part].bytes >= bytes) {
        return HEDDLE_OK;
    }
    HD_TRY(heddle_buffer_alloc(&memory, room->comm, (size_t)(bytes > 0 ? bytes : 1), HEDDLE_SPACE_HOST));
    heddle_buffer_free(room->comm, room->part[part].memory);
    room->part[part].memory = memory;
    room->part[part].bytes = bytes;
out:
    return st;
}

heddle_status hd_room_enter(hd_room_user *user, hd_room *room, heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    hd_room *made = NULL;
    HD_TRY(room == NULL ? hd_room_make(&made, comm) : HEDDLE_OK);
    room = room == NULL ? made : room;
    for (int i = 0; i < HD_ROOM_PARTS; i++) {
        HD_TRY(grow(room, i, user->bytes[i]));
        if (user->wanted_bytes[i] > room->part[i].wanted_bytes) {
            room->part[i].wanted_bytes = user->wanted_bytes[i];
        }
    }
    const int64_t unlent = user->wanted_bytes[HD_ROOM_METHOD] + user->lent_bytes;
    room->unlent_bytes = unlent > room->unlent_bytes ? unlent : room->unlent_bytes;
    room->owners++;
    hd_room_leave(user->room);
    user->room = room;
    hd_room_place(user);
out:
    hd_room_leave(made);
    return st;
}

void hd_room_place(hd_room_user *user)
{
    const hd_room *room = user->room;
    int has_moved = 0;
    for (int i = 0; room != NULL && i < HD_ROOM_PARTS; i++) {
        has_moved |= user->base[i] != room->part[i].memory;
        user->base[i] = room->part[i].memory;
    }
    for (int i = 0; has_moved && i < user->npieces; i++) {
        *user->piece[i].at = (char *)user->base[user->piece[i].part] + user->piece[i].offset;
    }
}
