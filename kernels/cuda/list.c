/* Boxes as kernels want them: in vectors, with divisors, shared out among blocks. */
#include "kernels/cuda/list.h"

#include <string.h>

static const int64_t MOST_VECTORS = INT32_MAX; /* of one box: a divisor's reach */

hd_divisor hd_divisor_of(int64_t d)
{
    hd_divisor out = {.d = (uint32_t)d};
    if (d > 1) {
        uint32_t bits = 0;
        while (((uint64_t)1 << bits) < (uint64_t)d) {
            bits++;
        }
        out.shift = bits - 1;
        out.mul = (uint32_t)((((uint64_t)1 << (31 + bits)) + (uint64_t)d - 1) / (uint64_t)d);
    }
    return out;
}

/* The widest vector, 1 to 16 bytes, that divides all lengths, offsets and strides. */
static int64_t width_of(const hd_device_box *box)
{
    int64_t all = 16 | box->run_bytes | box->src_offset_bytes | box->dst_offset_bytes;
    for (int i = 0; i < box->nloops; i++) {
        all |= box->count[i] > 1 ? box->src_stride_bytes[i] | box->dst_stride_bytes[i] : 0;
    }
    return all & -all;
}

static int64_t vectors_of(const hd_device_box *box, int first_loop)
{
    int64_t n = box->run_bytes / width_of(box);
    for (int i = first_loop; i < box->nloops; i++) {
        n *= box->count[i];
    }
    return n;
}

typedef struct pieces {
    hd_list_box *out; /* NULL: counted only */
    int n;
} pieces;

static void add_piece(pieces *p, const hd_device_box *box)
{
    if (p->out != NULL) {
        int64_t width = width_of(box);
        hd_list_box *made = &p->out[p->n];
        *made = (hd_list_box){.peer = box->peer,
                              .src_base = box->src_base,
                              .dst_base = box->dst_base,
                              .nloops = box->nloops,
                              .vectors = (uint32_t)vectors_of(box, 0),
                              .width_bytes = (uint32_t)width,
                              .src_offset_bytes = box->src_offset_bytes,
                              .dst_offset_bytes = box->dst_offset_bytes,
                              .run = hd_divisor_of(box->run_bytes / width)};
        for (int i = 0; i < HD_MAX_LOOPS; i++) {
            int from = box->nloops - 1 - i;
            made->loop[i].count = hd_divisor_of(from >= 0 ? box->count[from] : 1);
            made->loop[i].src_stride_bytes = from >= 0 ? box->src_stride_bytes[from] : 0;
            made->loop[i].dst_stride_bytes = from >= 0 ? box->dst_stride_bytes[from] : 0;
        }
    }
    p->n++;
}

/* `length` of the outermost loop's steps (of the run's bytes when it has no loop), from `first` on */
static hd_device_box slice(const hd_device_box *box, int64_t first, int64_t length)
{
    hd_device_box out = *box;
    int has_loop = box->nloops > 0;
    out.src_offset_bytes += first * (has_loop ? box->src_stride_bytes[0] : 1);
    out.dst_offset_bytes += first * (has_loop ? box->dst_stride_bytes[0] : 1);
    *(has_loop ? &out.count[0] : &out.run_bytes) = length;
    return out;
}

static hd_device_box without_outermost(const hd_device_box *box)
{
    hd_device_box out = *box;
    out.nloops--;
    memmove(out.count, box->count + 1, sizeof out.count - sizeof out.count[0]);
    memmove(out.src_stride_bytes, box->src_stride_bytes + 1, sizeof out.count - sizeof out.count[0]);
    memmove(out.dst_stride_bytes, box->dst_stride_bytes + 1, sizeof out.count - sizeof out.count[0]);
    return out;
}

/* A box that has too many vectors for one is cut along its outermost loops. */
static void add_box(pieces *p, const hd_device_box *box)
{
    int64_t vectors = vectors_of(box, 0);
    if (vectors == 0) {
        return;
    }
    if (vectors <= MOST_VECTORS) {
        add_piece(p, box);
        return;
    }
    int has_loop = box->nloops > 0;
    int64_t inner = has_loop ? vectors_of(box, 1) : 1;
    int64_t most = has_loop ? MOST_VECTORS / inner : MOST_VECTORS / 16 * 16 * width_of(box);
    int64_t length = has_loop ? box->count[0] : box->run_bytes, step = most > 0 ? most : 1;
    for (int64_t first = 0; first < length; first += step) {
        hd_device_box part = slice(box, first, length - first < step ? length - first : step);
        if (most > 0) {
            add_piece(p, &part);
        } else {
            part = without_outermost(&part);
            add_box(p, &part);
        }
    }
}

static int is_valid(const hd_device_box *box)
{
    int ok = box->peer >= 0 && box->peer < HD_DEVICE_MAX_PEERS && box->src_base >= 0 &&
             box->src_base < HD_DEVICE_MAX_BASES && box->dst_base >= 0 && box->dst_base < HD_DEVICE_MAX_BASES &&
             box->run_bytes >= 0 && box->nloops >= 0 && box->nloops <= HD_MAX_LOOPS;
    for (int i = 0; ok && i < box->nloops; i++) {
        ok = box->count[i] >= 0;
    }
    return ok;
}

/* Blocks of each piece: one, and of the others as many as its bytes have a right to, rounded down, so that there are no
 * more than `blocks`; but none without a vector for each of its threads. */
static int share(hd_list_box *box, int nboxes, int blocks)
{
    double all = 0;
    int used = 0, others = blocks > nboxes ? blocks - nboxes : 0;
    for (int i = 0; i < nboxes; i++) {
        all += (double)box[i].vectors * box[i].width_bytes;
    }
    for (int i = 0; i < nboxes; i++) {
        double part = (double)box[i].vectors * box[i].width_bytes / all;
        int64_t most = ((int64_t)box[i].vectors + HD_CUDA_THREADS - 1) / HD_CUDA_THREADS;
        int64_t parts = 1 + (int64_t)(part * others);
        box[i].parts = (uint32_t)(parts > most ? most : parts);
        used += (int)box[i].parts;
    }
    return used;
}

static int count_pieces(const hd_device_box *box, int nboxes)
{
    pieces p = {0};
    for (int i = 0; i < nboxes; i++) {
        if (!is_valid(&box[i])) {
            return -1;
        }
        add_box(&p, &box[i]);
    }
    return p.n;
}

size_t hd_list_bytes(const hd_device_box *box, int nboxes, int blocks)
{
    int n = count_pieces(box, nboxes);
    size_t most_blocks = (size_t)(blocks > n ? blocks : n > 0 ? n : 1);
    return n < 0 ? 0 : sizeof(hd_list) + most_blocks * sizeof(hd_list_block) + (size_t)n * sizeof(hd_list_box);
}

/* First parts of all boxes, then second parts: peers are begun with at once. */
static void fill_blocks(hd_list *list)
{
    hd_list_block *block = (hd_list_block *)(list + 1);
    const hd_list_box *box = hd_list_boxes(list);
    int n = 0;
    for (uint32_t part = 0; n < list->nblocks && list->nboxes > 0; part++) {
        for (int i = 0; i < list->nboxes; i++) {
            if (part < box[i].parts) {
                block[n++] = (hd_list_block){i, part};
            }
        }
    }
    if (list->nboxes == 0) {
        block[0].box = -1;
    }
}

void hd_list_make(void *memory, const hd_device_box *box, int nboxes, int blocks)
{
    size_t bytes = hd_list_bytes(box, nboxes, blocks);
    memset(memory, 0, bytes);
    hd_list *list = memory;
    list->nboxes = count_pieces(box, nboxes);
    /* made at the end of the memory, where the shares are known only afterwards */
    pieces p = {.out = (hd_list_box *)((char *)memory + bytes) - list->nboxes};
    for (int i = 0; i < nboxes; i++) {
        add_box(&p, &box[i]);
    }
    int used = share(p.out, p.n, blocks);
    list->nblocks = used > 0 ? used : 1;
    memmove((void *)(uintptr_t)hd_list_boxes(list), p.out, (size_t)p.n * sizeof *p.out);
    const hd_list_box *made = hd_list_boxes(list);
    for (int i = 0; i < p.n; i++) {
        list->nloops = made[i].nloops > list->nloops ? made[i].nloops : list->nloops;
        list->nsrc = made[i].src_base >= list->nsrc ? made[i].src_base + 1 : list->nsrc;
        list->ndst = made[i].dst_base >= list->ndst ? made[i].dst_base + 1 : list->ndst;
        list->bytes_of[made[i].peer] += (uint64_t)made[i].vectors * made[i].width_bytes;
        list->blocks_of[made[i].peer] += made[i].parts;
    }
    fill_blocks(list);
}

int hd_list_blocks_of(const void *list)
{
    return ((const hd_list *)list)->nblocks;
}

int hd_list_takes_gate(const void *memory)
{
    const hd_list *list = memory;
    const hd_list_box *box = hd_list_boxes(list);
    int takes = list->nloops <= HD_LIST_FEW_LOOPS && list->nsrc <= 1;
    for (int i = 0; i < list->nboxes; i++) {
        takes &= box[i].width_bytes == 16;
    }
    return takes;
}
