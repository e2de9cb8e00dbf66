/* A device that a communicator has: one of those that a device library serves, its memory, and whose a pointer is. */
#ifndef HD_DEVICE_H
#define HD_DEVICE_H

#include <heddle/sys/device.h>
#include <stdatomic.h>
#include <sys/types.h>

typedef struct hd_device_buffer {
    struct hd_device_buffer *next;
    void *memory;
    size_t bytes;
    int is_own;   /* nobody else is given its address */
    int is_held;  /* the program's, which has it of the library: not allocated here, and let go in the end */
    uint64_t *at; /* shared with other processes: by rank of the user's communicator, where that one has it mapped; 0:
                   * nowhere yet. NULL: it is not shared */
} hd_device_buffer;

enum { HD_DEVICE_SEEN = 16 /* arrays of a model's pass, and its session's buffers */ };

typedef struct hd_device {
    const heddle_device *library;
    int number;
    pid_t opened_by;           /* no other process can use it */
    const char *folder;        /* of its library, and of others for it; only while it is attached */
    hd_device_buffer *buffers; /* that are out */
    hd_device_buffer *lent;    /* the caller's, with a place on every rank */
    int is_loaded;             /* its kernels are */
    int is_left;               /* kernels are under way that nobody here can end: nothing is freed any more */
    int keeps;                 /* freeing may wait for kernels that wait for this rank: buffers are kept instead */
    int is_mapped;             /* shared buffers may still be mapped elsewhere: they end with the process */
    hd_device_buffer *kept;    /* for the next ones */
    void **pages;              /* of hd_device_page, not in use: each begins with the address of the next */
    _Atomic(const void *) seen[HD_DEVICE_SEEN]; /* what the library has found here last, in turn: of any thread */
    _Atomic unsigned nseen;
    char name[80];      /* "cuda:1" */
    char describe[160]; /* its kind, in a few words */
} hd_device;

/* where: "NAME", "NAME:3" or "NAME:current". folder: of libheddle_NAME.so, as for hd_module_load. HEDDLE_ERR_PARSE: no
 * such form; HEDDLE_ERR_UNSUPPORTED: no library, or it has no such device; says what is missing. */
heddle_status hd_device_open(hd_device **out, const char *where, const char *folder, int local_rank);
/* With all buffers that are out. NULL is legal. In a fork of the process that opened it only the handle is freed. */
void hd_device_close(hd_device *device);

/* PEERS: other ranks may be given its address, in their processes too (hd_comm_map_devices). */
typedef enum hd_device_use { HD_DEVICE_FOR_PEERS, HD_DEVICE_FOR_OWN } hd_device_use;
heddle_status hd_device_alloc(hd_device *device, void **out, size_t bytes, hd_device_use use);
void hd_device_leave(hd_device *device); /* is_left from now on */
/* Of memory that the library's alloc gave: not where the device is left. NULL is legal. */
void hd_device_free(hd_device *device, void *memory);
/* Memory of the caller's from now on, for `ranks` places in at, which are 0. */
heddle_status hd_device_lend(hd_device_buffer **out, hd_device *device, void *memory, size_t bytes, int ranks);
int hd_device_release(hd_device *device, void *memory); /* 0: no such buffer is out. What is shared is kept */
/* What the program has of the library by now is among the buffers, for peers, until the device is closed. */
heddle_status hd_device_hold_all(hd_device *device);
/* A page of the host that kernels read and write, zeroed. What was given back is kept for the next one and unpinned in
 * the end, because that waits for all kernels of the device. */
enum { HD_DEVICE_PAGE_BYTES = 4096 };
heddle_status hd_device_page(hd_device *device, void **out);
void hd_device_page_back(hd_device *device, void *page);

/* Of a launch by the library's kernels, which returned `code`; what: "attention". */
heddle_status hd_device_launched(const hd_device *device, int code, const char *what);

/* Does [memory, ...) lie where it should? 0 when it does. */
typedef enum hd_stray { HD_STRAY_NOT, HD_STRAY_HOST, HD_STRAY_DEVICE } hd_stray;
/* On any thread. device NULL: nobody knows of any. space: where it should lie; on the device that is `device`, not on
 * another one. The library is not asked again of what it was asked for lately and found on the device, until this
 * communicator frees memory there: what others free is not noticed. */
heddle_status hd_device_stray(hd_stray *out, hd_device *device, heddle_space space, const void *memory);

/* space.c. Of what works in host memory and nowhere else: is it asked for that? HEDDLE_ERR_UNSUPPORTED names `what` (a
 * tensor, a plan); HEDDLE_ERR_ARG: no such space or device. */
heddle_status hd_device_host_only(heddle_space space, int device, const char *what);
/* The same of what works on `own`, too (NULL: none is attached), between ranks of `transport`. */
heddle_status hd_device_need(const hd_device *own, heddle_space space, int device, const char *what,
                             const char *transport);

#endif
