/* Ranks compare what they ask for before anything else happens. */
#include "runtime/attention/attention_internal.h"
#include "runtime/base/hash.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void hd_fields_add(hd_fields *fields, const char *name, const char *format, ...)
{
    if (fields->count < HD_MAX_FIELDS) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(fields->text[fields->count], HD_FIELD_BYTES, format, arguments);
        va_end(arguments);
        fields->name[fields->count++] = name;
    }
}

/* The first rank whose field differs from rank 0's; -1: none. */
static int find_other(const char *all, int nranks)
{
    for (int r = 1; r < nranks; r++) {
        if (strcmp(all, all + (size_t)r * HD_FIELD_BYTES) != 0) {
            return r;
        }
    }
    return -1;
}

static uint64_t hash_fields(const hd_fields *fields)
{
    uint64_t hash = HD_HASH_BASIS;
    for (int f = 0; f < fields->count; f++) {
        hash = hd_hash(hash, fields->text[f], strlen(fields->text[f]) + 1);
    }
    return hash;
}

static heddle_status tell(heddle_comm *comm, const hd_fields *fields, char *all)
{
    heddle_status st = HEDDLE_OK;
    int nranks = heddle_comm_size(comm);
    for (int f = 0; f < HD_MAX_FIELDS; f++) { /* every rank gathers as often, however many fields it has */
        char own[HD_FIELD_BYTES] = "";
        if (f < fields->count) {
            memcpy(own, fields->text[f], sizeof own);
        }
        HD_TRY(heddle_comm_allgather(comm, own, all, sizeof own));
        int other = find_other(all, nranks);
        if (other >= 0) {
            st = hd_fail(HEDDLE_ERR_MISMATCH, "rank %d asks for another %s: its %s is '%s', rank 0's is '%s'", other,
                         fields->what, f < fields->count ? fields->name[f] : "last field",
                         all + (size_t)other * HD_FIELD_BYTES, all);
            goto out;
        }
    }
    st = hd_fail(HEDDLE_ERR_INTERNAL, "ranks ask for the same %s but their fingerprints differ", fields->what);
out:
    return st;
}

heddle_status hd_fields_agree(heddle_comm *comm, const hd_fields *fields, heddle_status mine)
{
    heddle_status st = HEDDLE_OK;
    int nranks = heddle_comm_size(comm);
    uint64_t own = hash_fields(fields), *all = NULL;
    char *texts = NULL;
    if (mine == HEDDLE_OK) {
        mine = hd_alloc((void **)&all, (size_t)nranks, sizeof own, "fingerprints");
    }
    if (mine == HEDDLE_OK) {
        mine = hd_alloc((void **)&texts, (size_t)nranks, HD_FIELD_BYTES, "fields of all ranks");
    }
    HD_TRY(hd_comm_agree(comm, mine));
    HD_TRY(heddle_comm_allgather(comm, &own, all, sizeof own));
    for (int r = 1; r < nranks; r++) {
        if (all[r] != all[0]) {
            HD_TRY(tell(comm, fields, texts));
        }
    }
out:
    hd_free(all);
    hd_free(texts);
    return st;
}
