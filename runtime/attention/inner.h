/* Rooms: memory that objects of attention have while they are called. Objects that are called one after the other may
 * have one room, which is as large as the one that wants most. */
#ifndef HD_ATTENTION_INNER_H
#define HD_ATTENTION_INNER_H

#include <heddle/attention.h>
#include <heddle/linear_attention.h>

/* METHOD: what a method's formula counts. THREADS: what the kernels of all threads work in. */
enum { HD_ROOM_METHOD, HD_ROOM_THREADS, HD_ROOM_PARTS };
enum { HD_ROOM_PIECES = 32 };

typedef struct hd_room {
    int owners;        /* those in it, and whoever hands it on */
    heddle_comm *comm; /* its memory is reached by these ranks and by groups of them */
    struct {
        void *memory;
        int64_t bytes;        /* of the memory: pieces begin at multiples of 64 */
        int64_t wanted_bytes; /* what the pieces of the one that wants most have */
    } part[HD_ROOM_PARTS];
    int64_t unlent_bytes; /* METHOD's wanted bytes if nothing were lent */
} hd_room;

heddle_status hd_room_make(hd_room **out, heddle_comm *comm);
void hd_room_leave(hd_room *room); /* the last one frees it; NULL is legal */

/* What one object has in its room. Zeroed at first. */
typedef struct hd_room_user {
    hd_room *room;
    void *base[HD_ROOM_PARTS]; /* where the pieces have been placed */
    int64_t bytes[HD_ROOM_PARTS], wanted_bytes[HD_ROOM_PARTS];
    int64_t lent_bytes; /* more would be wanted of METHOD if other ranks' memory were not read where it lies */
    int npieces;
    struct {
        void **at;
        int part;
        int64_t offset;
    } piece[HD_ROOM_PIECES];
} hd_room_user;

/* *at will point to so many bytes of the room, at a multiple of 64, from hd_room_enter on. Before that. */
heddle_status hd_room_want(hd_room_user *user, int part, void **at, int64_t bytes);
/* All pieces are wanted: into this room, which grows, or one of the object's own (NULL); out of the one before. */
heddle_status hd_room_enter(hd_room_user *user, hd_room *room, heddle_comm *comm);
/* Before every call: the room may have grown for another object, and is what that one has left. */
void hd_room_place(hd_room_user *user);

/* In which room an object is, where it shares one (NULL: it has its own). keeps 1: what backward needs of forward is
 * the object's own; 0: it lies in the room, too, until another one's call: nobody goes back, or at once. On a device
 * both are the object's own. */
typedef struct hd_object_room {
    hd_room *room;
    int keeps;
    heddle_status mine; /* what this rank has come to before, which the others hear of */
} hd_object_room;
heddle_status hd_attention_create_in(heddle_attention **out, heddle_comm *comm, const heddle_shape *shape,
                                     const heddle_mesh *mesh, const heddle_layout *layout,
                                     const heddle_attention_options *options, hd_object_room in);
heddle_status hd_linear_attention_create_in(heddle_linear_attention **out, heddle_comm *comm, const heddle_shape *shape,
                                            const heddle_mesh *mesh, const heddle_layout *layout,
                                            const heddle_linear_attention_options *options, hd_object_room in);
/* Into another room. */
heddle_status hd_attention_enter(heddle_attention *attention, hd_room *room);
heddle_status hd_linear_attention_enter(heddle_linear_attention *attention, hd_room *room);

#endif
