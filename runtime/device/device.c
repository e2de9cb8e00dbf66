/* A device's memory, and whose a pointer is. */
#include "runtime/device/device.h"
#include "runtime/base/base.h"

#include <string.h>
#include <unistd.h>

static void push(hd_device_buffer **list, hd_device_buffer *buffer)
{
    buffer->next = *list;
    *list = buffer;
}

/* One that fits without much waste. */
static hd_device_buffer *take_kept(hd_device *device, size_t bytes)
{
    hd_device_buffer **at = &device->kept;
    while (*at != NULL && ((*at)->bytes < bytes || (*at)->bytes / 2 > bytes)) {
        at = &(*at)->next;
    }
    hd_device_buffer *buffer = *at;
    if (buffer != NULL) {
        *at = buffer->next;
    }
    return buffer;
}

heddle_status hd_device_alloc(hd_device *device, void **out, size_t bytes, hd_device_use use)
{
    heddle_status st = HEDDLE_OK;
    hd_device_buffer *buffer = device->is_left ? NULL : take_kept(device, bytes);
    if (buffer == NULL) {
        HD_TRY(hd_alloc((void **)&buffer, 1, sizeof *buffer, "a device's buffer"));
        buffer->bytes = bytes > 0 ? bytes : 1;
        HD_TRY(device->library->alloc(&buffer->memory, device->number, buffer->bytes));
    }
    buffer->is_own = use == HD_DEVICE_FOR_OWN;
    push(&device->buffers, buffer);
    *out = buffer->memory;
    buffer = NULL;
out:
    hd_free(buffer);
    return st;
}

/* An address may be given out again, by another device. */
static void forget_seen(hd_device *device)
{
    for (int i = 0; i < HD_DEVICE_SEEN; i++) {
        atomic_store_explicit(&device->seen[i], NULL, memory_order_relaxed);
    }
}

static void free_first(hd_device *device, hd_device_buffer **list)
{
    hd_device_buffer *buffer = *list;
    *list = buffer->next;
    forget_seen(device);
    int is_in_use = device->is_left || (device->is_mapped && buffer->at != NULL);
    if (device->opened_by == getpid() && !is_in_use && buffer->is_held) {
        device->library->let_go(buffer->memory);
    } else if (device->opened_by == getpid() && !is_in_use) {
        device->library->free(buffer->memory, device->number);
    }
    hd_free(buffer->at);
    hd_free(buffer);
}

heddle_status hd_device_lend(hd_device_buffer **out, hd_device *device, void *memory, size_t bytes, int ranks)
{
    heddle_status st = HEDDLE_OK;
    hd_device_buffer *buffer = NULL;
    HD_TRY(hd_alloc((void **)&buffer, 1, sizeof *buffer, "lent memory"));
    HD_TRY(hd_alloc((void **)&buffer->at, (size_t)ranks, sizeof *buffer->at, "lent memory"));
    buffer->memory = memory;
    buffer->bytes = bytes;
    push(&device->lent, buffer);
    *out = buffer;
    buffer = NULL;
out:
    hd_free(buffer);
    return st;
}

static int is_held(const hd_device *device, const void *memory)
{
    const hd_device_buffer *b = device->buffers;
    while (b != NULL && (b->memory != memory || !b->is_held)) {
        b = b->next;
    }
    return b != NULL;
}

static heddle_status note_held(hd_device *device, void *memory, size_t bytes)
{
    hd_device_buffer *buffer = NULL;
    const int is_known = is_held(device, memory);
    heddle_status st = is_known ? HEDDLE_OK : hd_alloc((void **)&buffer, 1, sizeof *buffer, "memory of a pool");
    if (buffer == NULL) {
        device->library->let_go(memory);
        return st;
    }
    *buffer = (hd_device_buffer){.memory = memory, .bytes = bytes, .is_held = 1};
    push(&device->buffers, buffer);
    return HEDDLE_OK;
}

heddle_status hd_device_hold_all(hd_device *device)
{
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    size_t bytes = 0;
    do {
        if (device->library->hold != NULL) {
            device->library->hold(&memory, &bytes, device->number, memory);
        }
        st = memory != NULL ? note_held(device, memory, bytes) : HEDDLE_OK;
    } while (memory != NULL && st == HEDDLE_OK);
    return st;
}

void hd_device_leave(hd_device *device)
{
    device->is_left = 1;
}

void hd_device_free(hd_device *device, void *memory)
{
    forget_seen(device);
    if (!device->is_left) {
        device->library->free(memory, device->number);
    }
}

int hd_device_release(hd_device *device, void *memory)
{
    hd_device_buffer **at = &device->buffers;
    while (*at != NULL && ((*at)->memory != memory || (*at)->is_held)) {
        at = &(*at)->next;
    }
    hd_device_buffer *buffer = *at;
    if (buffer == NULL) {
        return 0;
    }
    if (device->keeps || buffer->at != NULL) {
        *at = buffer->next;
        push(&device->kept, buffer);
    } else {
        free_first(device, at);
    }
    return 1;
}

heddle_status hd_device_page(hd_device *device, void **out)
{
    heddle_status st = HEDDLE_OK;
    void *page = device->pages;
    if (page != NULL) {
        device->pages = *device->pages;
    } else {
        HD_TRY(hd_alloc_aligned(&page, HD_DEVICE_PAGE_BYTES, HD_DEVICE_PAGE_BYTES, "a page for a device"));
        HD_TRY(device->library->pin(page, HD_DEVICE_PAGE_BYTES, device->number));
    }
    memset(page, 0, HD_DEVICE_PAGE_BYTES);
    *out = page;
    page = NULL;
out:
    hd_free(page);
    return st;
}

void hd_device_page_back(hd_device *device, void *page)
{
    *(void **)page = device->pages;
    device->pages = page;
}

static void free_page(hd_device *device)
{
    void *page = device->pages;
    device->pages = *device->pages;
    if (device->is_left) {
        return;
    }
    if (device->opened_by == getpid()) {
        device->library->unpin(page, device->number);
    }
    hd_free(page);
}

void hd_device_close(hd_device *device)
{
    while (device != NULL && device->pages != NULL) {
        free_page(device);
    }
    while (device != NULL && device->lent != NULL) {
        hd_device_buffer *lent = device->lent;
        device->lent = lent->next;
        hd_free(lent->at);
        hd_free(lent);
    }
    while (device != NULL && (device->buffers != NULL || device->kept != NULL)) {
        free_first(device, device->buffers != NULL ? &device->buffers : &device->kept);
    }
    hd_free(device);
}

static int is_seen(const hd_device *device, const void *memory)
{
    int at = 0;
    while (at < HD_DEVICE_SEEN && atomic_load_explicit(&device->seen[at], memory_order_relaxed) != memory) {
        at++;
    }
    return at < HD_DEVICE_SEEN;
}

heddle_status hd_device_stray(hd_stray *out, hd_device *device, heddle_space space, const void *memory)
{
    heddle_space found = HEDDLE_SPACE_HOST;
    int number = 0;
    if (device != NULL && memory != NULL && space == HEDDLE_SPACE_DEVICE && is_seen(device, memory)) {
        *out = HD_STRAY_NOT;
        return HEDDLE_OK;
    }
    heddle_status st = device != NULL && memory != NULL ? device->library->look(&found, &number, memory) : HEDDLE_OK;
    int is_own = found == HEDDLE_SPACE_DEVICE && number == device->number;
    if (st == HEDDLE_OK && is_own && space == HEDDLE_SPACE_DEVICE) {
        const unsigned at = atomic_fetch_add_explicit(&device->nseen, 1, memory_order_relaxed) % HD_DEVICE_SEEN;
        atomic_store_explicit(&device->seen[at], memory, memory_order_relaxed);
    }
    const int is_stray = space == HEDDLE_SPACE_DEVICE ? !is_own : found == HEDDLE_SPACE_DEVICE;
    *out = !is_stray ? HD_STRAY_NOT : found == HEDDLE_SPACE_HOST ? HD_STRAY_HOST : HD_STRAY_DEVICE;
    return st;
}

heddle_status hd_device_launched(const hd_device *device, int code, const char *what)
{
    return code == 0 ? HEDDLE_OK : device->library->status(code, device->number, what);
}
