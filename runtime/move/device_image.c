/* Images of a device's arrays for the length of a call. */
#include "runtime/move/device_image.h"
#include "runtime/base/base.h"

#include <stdio.h>

static heddle_status settle(hd_image *image, heddle_status st)
{
    HD_TRY(hd_enqueued_end(&image->copies, image->stream, st));
    st = hd_enqueued_wait(&image->copies, hd_comm_deadline_ns(image->comm, 0), hd_comm_look, image->comm);
out:
    return st;
}

/* The image is not pinned, so the call that copies may wait for the stream, and without a deadline: this waits before.
 * The others would wait for a rank whose device fails: they are told. */
static heddle_status copy(hd_image *image, void *dst, const void *src)
{
    heddle_status st;
    const hd_device *device = hd_comm_device(image->comm);
    const int64_t bytes = (int64_t)image->bytes;
    HD_TRY(settle(image, HEDDLE_OK));
    st = settle(image, device->library->copy(dst, 0, src, 0, bytes, 1, device->number, image->stream));
out:
    return st == HEDDLE_OK ? st : hd_comm_abort_with(image->comm, st);
}

/* The others would wait for this rank: they are told, but of what its caller has got wrong. */
static heddle_status told(heddle_comm *comm, heddle_status st)
{
    return st == HEDDLE_OK || st == HEDDLE_ERR_ARG ? st : hd_comm_abort_with(comm, st);
}

heddle_status hd_image_is_wanted(int *is_there, heddle_comm *comm, const void *array, size_t bytes, const char *what)
{
    heddle_status st = HEDDLE_OK;
    hd_device *device = hd_comm_device(comm);
    hd_stray of_host, of_device = HD_STRAY_NOT;
    *is_there = 0;
    if (bytes == 0 || device == NULL) {
        return HEDDLE_OK;
    }
    HD_TRY(hd_device_stray(&of_host, device, HEDDLE_SPACE_HOST, array));
    *is_there = of_host != HD_STRAY_NOT;
    if (*is_there) {
        HD_TRY(hd_device_stray(&of_device, device, HEDDLE_SPACE_DEVICE, array));
    }
    if (of_device != HD_STRAY_NOT) {
        st = hd_fail(HEDDLE_ERR_ARG, "rank %d: %s of memory of another device than %s",
                     hd_comm_rank_name(comm, heddle_comm_rank(comm)), what, device->name);
    }
out:
    return told(comm, st);
}

heddle_status hd_image_need_no_capture(heddle_comm *comm, heddle_stream stream, const char *what, const char *does)
{
    const hd_device *device = hd_comm_device(comm);
    int captures = 0;
    const heddle_status st = told(comm, device->library->stream_captures(&captures, device->number, stream));
    return captures ? hd_fail(HEDDLE_ERR_ARG, "rank %d: its stream is being captured, and %s %s",
                              hd_comm_rank_name(comm, heddle_comm_rank(comm)), what, does)
                    : st;
}

heddle_status hd_image_open(hd_image *out, heddle_comm *comm, const void *array, size_t bytes, int reads,
                            heddle_stream stream, const char *what)
{
    heddle_status st = HEDDLE_OK;
    int is_there = 0;
    *out = (hd_image){.host = (void *)(uintptr_t)array, .comm = comm, .bytes = bytes, .stream = stream};
    HD_TRY(hd_image_is_wanted(&is_there, comm, array, bytes, what));
    if (!is_there) {
        return HEDDLE_OK;
    }
    out->host = NULL;
    snprintf(out->line, sizeof out->line, "of %zu bytes", bytes);
    out->copies.names = (hd_enqueued_names){hd_comm_rank_name(comm, heddle_comm_rank(comm)), "copies", what, out->line};
    HD_TRY(hd_image_need_no_capture(comm, stream, what, "blocks"));
    HD_TRY(told(comm, heddle_buffer_alloc(&out->host, comm, bytes, HEDDLE_SPACE_HOST)));
    out->array = (void *)(uintptr_t)array;
    HD_TRY(told(comm, hd_enqueued_open(&out->copies, hd_comm_device(comm))));
    st = reads ? copy(out, out->host, array) : HEDDLE_OK;
out:
    return st;
}

heddle_status hd_image_write(hd_image *image)
{
    return image->array != NULL ? copy(image, image->array, image->host) : HEDDLE_OK;
}

void hd_image_close(hd_image *image)
{
    if (image->array == NULL) {
        return;
    }
    const hd_sentence why = hd_sentence_keep();
    if (hd_enqueued_has_ended(&image->copies, hd_now_ns())) {
        heddle_buffer_free(image->comm, image->host);
    }
    hd_enqueued_close(&image->copies);
    heddle_ignore(hd_sentence_say(&why, HEDDLE_OK));
}
