#include "runtime/base/base.h"
#include "runtime/base/memory.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPARED_BYTES = 16 << 20 };

static atomic_long fail_at; /* counts down to the allocation that fails; 0 = off */

void hd_alloc_fail_at(long n)
{
    atomic_store(&fail_at, n);
}

static int injected_failure(void)
{
    return atomic_load_explicit(&fail_at, memory_order_relaxed) > 0 && atomic_fetch_sub(&fail_at, 1) == 1;
}

heddle_status hd_check_available(size_t bytes, size_t others_bytes, const char *what)
{
    char where[HD_WHERE_BYTES], others[80] = "";
    if (bytes < HD_CHECKED_FROM) {
        return HEDDLE_OK;
    }
    size_t available =
        hd_available_bytes(where, sizeof where, ""); /* stacks and tables of pages want some of it, too */
    size_t left = available > SPARED_BYTES ? available - SPARED_BYTES : 0;
    if (bytes <= left && others_bytes <= left - bytes) {
        return HEDDLE_OK;
    }
    if (others_bytes > 0) {
        snprintf(others, sizeof others, ", and other ranks just now take %zu", others_bytes);
    }
    return hd_fail(HEDDLE_ERR_NOMEM, "out of memory: %s, %zu bytes, %s has %zu left%s", what, bytes, where, available,
                   others);
}

heddle_status hd_product(int64_t *out, const char *what, int n, const int64_t *factor)
{
    char text[200] = "";
    int64_t product = 1;
    int too_large = 0, at = 0, zero = 0;
    for (int i = 0; i < n; i++) {
        zero |= factor[i] == 0;
        too_large |= __builtin_mul_overflow(product, factor[i], &product);
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%lld", i > 0 ? " x " : "", (long long)factor[i]);
        at = at < (int)sizeof text ? at : (int)sizeof text - 1;
    }
    *out = zero ? 0 : product;
    return too_large && !zero ? hd_fail(HEDDLE_ERR_NOMEM, "%s: %s bytes do not fit the address space", what, text)
                              : HEDDLE_OK;
}

heddle_status hd_alloc(void **out, size_t count, size_t bytes, const char *what)
{
    size_t all = 0;
    if (!__builtin_mul_overflow(count, bytes, &all) && all >= HD_CHECKED_FROM) {
        char text[160];
        snprintf(text, sizeof text, "%s, %zu x %zu", what, count, bytes);
        heddle_status st = hd_check_available(all, 0, text);
        if (st != HEDDLE_OK) {
            return st;
        }
    }
    void *memory = injected_failure() ? NULL : calloc(count > 0 ? count : 1, bytes > 0 ? bytes : 1);
    if (memory == NULL) {
        return hd_fail(HEDDLE_ERR_NOMEM, "out of memory: %s, %zu x %zu bytes", what, count, bytes);
    }
    *out = memory;
    return HEDDLE_OK;
}

heddle_status hd_alloc_aligned(void **out, size_t alignment, size_t bytes, const char *what)
{
    void *memory = NULL;
    heddle_status st = hd_check_available(bytes, 0, what);
    if (st != HEDDLE_OK) {
        return st;
    }
    if (injected_failure() || posix_memalign(&memory, alignment, bytes > 0 ? bytes : 1) != 0) {
        return hd_fail(HEDDLE_ERR_NOMEM, "out of memory: %s, %zu bytes", what, bytes);
    }
    memset(memory, 0, bytes);
    *out = memory;
    return HEDDLE_OK;
}

heddle_status hd_reserve(void **memory, size_t *held_bytes, size_t alignment, size_t bytes, const char *what)
{
    if (*held_bytes >= bytes) {
        return HEDDLE_OK;
    }
    hd_free(*memory);
    *memory = NULL;
    *held_bytes = 0;
    heddle_status st = hd_alloc_aligned(memory, alignment, bytes, what);
    *held_bytes = st == HEDDLE_OK ? bytes : 0;
    return st;
}

heddle_status hd_grow(void **list, int *capacity, int count, size_t elem_bytes, const char *what)
{
    void *larger = NULL;
    const int wanted = 2 * *capacity + 8;
    if (count < *capacity) {
        return HEDDLE_OK;
    }
    heddle_status st = hd_alloc(&larger, (size_t)wanted, elem_bytes, what);
    if (st != HEDDLE_OK) {
        return st;
    }
    if (count > 0) {
        memcpy(larger, *list, (size_t)count * elem_bytes);
    }
    hd_free(*list);
    *list = larger;
    *capacity = wanted;
    return HEDDLE_OK;
}

heddle_status hd_strdup(char **out, const char *text)
{
    size_t bytes = strlen(text) + 1;
    void *copy = NULL;
    heddle_status st = hd_alloc(&copy, bytes, 1, "a string");
    if (st == HEDDLE_OK) {
        memcpy(copy, text, bytes);
        *out = copy;
    }
    return st;
}

void hd_free(void *memory)
{
    free(memory);
}

void hd_free_all(void *const *memory, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        hd_free(memory[i]);
    }
}
