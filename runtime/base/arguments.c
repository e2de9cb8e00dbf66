/* What callers hand over: pointers that must not be NULL, and structs that begin with their own size. */
#include "runtime/base/base.h"

#include <string.h>

static const int64_t MOST_MS = INT64_MAX / 2000000;

heddle_status hd_need(const void *pointer, const char *function, const char *argument)
{
    return pointer != NULL ? HEDDLE_OK : hd_fail(HEDDLE_ERR_ARG, "%s: %s is NULL", function, argument);
}

/* arguments: as they stand in the call, with commas between. */
heddle_status hd_need_ith(int i, const char *function, const char *arguments)
{
    for (; i > 0; i--) {
        arguments = strchr(arguments, ',') + 2;
    }
    return hd_fail(HEDDLE_ERR_ARG, "%s: %.*s is NULL", function, (int)strcspn(arguments, ","), arguments);
}

/* Sizes of C structs that begin with a size_t are multiples of it: no other number is anybody's sizeof. */
static heddle_status check_size(size_t given_bytes, size_t known_bytes, size_t first_bytes, const char *name)
{
    first_bytes = (first_bytes + sizeof(size_t) - 1) / sizeof(size_t) * sizeof(size_t);
    if (given_bytes > known_bytes) {
        return hd_fail(HEDDLE_ERR_ARG,
                       "%s: struct_bytes is %zu, this library knows %zu: the program was built with a newer header",
                       name, given_bytes, known_bytes);
    }
    if (given_bytes < first_bytes || given_bytes % sizeof(size_t) != 0) {
        const char *rest = strstr(name, "_options"); /* those have a function that sets it */
        return hd_fail(HEDDLE_ERR_ARG, "%s: struct_bytes is %zu, wanted %zu (older headers: %zu at least): %s%s%s",
                       name, given_bytes, known_bytes, first_bytes,
                       rest != NULL ? "call " : "set it to the size of the struct", rest != NULL ? name : "",
                       rest != NULL ? "_init" : "");
    }
    return HEDDLE_OK;
}

heddle_status hd_struct_take(void *out, const void *given, size_t known_bytes, size_t first_bytes, const char *name)
{
    size_t given_bytes = 0;
    if (given == NULL) {
        return HEDDLE_OK;
    }
    memcpy(&given_bytes, given, sizeof given_bytes);
    heddle_status st = check_size(given_bytes, known_bytes, first_bytes, name);
    if (st == HEDDLE_OK) {
        memcpy(out, given, given_bytes);
        memcpy(out, &known_bytes, sizeof known_bytes);
    }
    return st;
}

heddle_status hd_struct_room(const void *out, size_t known_bytes, size_t first_bytes, const char *name)
{
    size_t room_bytes = 0;
    memcpy(&room_bytes, out, sizeof room_bytes);
    return check_size(room_bytes, known_bytes, first_bytes, name);
}

heddle_status hd_struct_give(void *out, const void *made, size_t known_bytes, size_t first_bytes, const char *name)
{
    heddle_status st = hd_struct_room(out, known_bytes, first_bytes, name);
    if (st == HEDDLE_OK) {
        size_t room_bytes = 0;
        memcpy(&room_bytes, out, sizeof room_bytes);
        memcpy((char *)out + sizeof room_bytes, (const char *)made + sizeof room_bytes, room_bytes - sizeof room_bytes);
    }
    return st;
}

heddle_status hd_check_ms(int64_t ms, const char *name)
{
    return ms >= 0 && ms <= MOST_MS
               ? HEDDLE_OK
               : hd_fail(HEDDLE_ERR_ARG, "%s is %lld, wanted 0 to %lld", name, (long long)ms, (long long)MOST_MS);
}
