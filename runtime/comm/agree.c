/* Ranks agree: on how it went so far, and on what they ask for; and one that cannot go on gives up for all. */
#include "runtime/comm/comm_private.h"

#include <stdio.h>
#include <string.h>

/* The others hear as much of the sentence as a record holds. */
static heddle_status tell_failure(heddle_comm *comm, heddle_status mine, hd_record *own)
{
    const hd_sentence why = hd_sentence_keep();
    hd_copy_text(own->text, sizeof own->text, why.text);
    heddle_ignore(hd_comm_gather(comm, HD_CALL_AGREE, own, comm->records, sizeof *own));
    return hd_sentence_say(&why, mine);
}

heddle_status hd_comm_agree_with(heddle_comm *comm, heddle_status mine, hd_record *own)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_group_owned(comm->group, "making something together"));
    own->status = (int32_t)mine;
    if (mine != HEDDLE_OK) {
        return tell_failure(comm, mine, own);
    }
    HD_TRY(hd_comm_gather(comm, HD_CALL_AGREE, own, comm->records, sizeof *own));
    for (int r = 0; r < comm->size; r++) {
        const hd_record *theirs = &comm->records[r];
        if (theirs->status != HEDDLE_OK) {
            return hd_fail(HEDDLE_ERR_PEER, "rank %d: %.*s", hd_comm_root_rank(comm, r), (int)sizeof theirs->text - 1,
                           theirs->text);
        }
    }
out:
    return st;
}

heddle_status hd_comm_agree(heddle_comm *comm, heddle_status mine)
{
    hd_record own = {.name = 0};
    return hd_comm_agree_with(comm, mine, &own);
}

heddle_status hd_comm_agree_bits(heddle_comm *comm, heddle_status mine, int32_t *bits)
{
    hd_record own = {.number = *bits};
    const heddle_status st = hd_comm_agree_with(comm, mine, &own);
    for (int r = 0; r < comm->size && st == HEDDLE_OK; r++) {
        *bits |= comm->records[r].number;
    }
    return st;
}

/* --- what all ask for --------------------------------------------------------------------------------------------- */

typedef struct told {
    int64_t team;
    uint64_t hash;
    char text[HD_FIELD_BYTES]; /* empty while only the fingerprints are compared */
} told;

/* The first rank that differs from the first one of its team (*first); -1: none. */
static int find_other(const told *all, int nranks, int *first)
{
    for (int r = 0; r < nranks; r++) {
        for (int f = 0; f < r; f++) {
            if (all[f].team == all[r].team) {
                if (all[f].hash != all[r].hash) {
                    *first = f;
                    return r;
                }
                break;
            }
        }
    }
    return -1;
}

/* Only after a difference: every rank goes through as many fields, however many it has, up to the first that differs.
 */
static heddle_status name_field(heddle_comm *comm, const hd_fields *fields, told *all)
{
    heddle_status st = HEDDLE_OK;
    for (int f = -1; f < HD_MAX_FIELDS; f++) {
        told own = {.team = fields->team};
        int first = 0;
        if (f < 0) {
            own.hash = hd_fields_kind(fields);
            hd_copy_text(own.text, sizeof own.text, comm->root->makes);
        } else if (f < fields->count) {
            own.hash = fields->field[f].hash;
            memcpy(own.text, fields->field[f].text, sizeof own.text);
        }
        HD_TRY(hd_fault_point(comm, "allgather"));
        HD_TRY(hd_comm_gather(comm, HD_CALL_ALLGATHER, &own, all, sizeof own));
        int other = find_other(all, comm->size, &first);
        if (other >= 0) {
            const int a = hd_comm_root_rank(comm, other), b = hd_comm_root_rank(comm, first);
            st = f < 0 ? hd_fail(HEDDLE_ERR_MISMATCH, "rank %d is in %s, rank %d in %s", a, all[other].text, b,
                                 all[first].text)
                       : hd_fail(HEDDLE_ERR_MISMATCH, "rank %d asks for another %s: its %s is '%s', rank %d's is '%s'",
                                 a, fields->what, f < fields->count ? fields->field[f].name : "last field",
                                 all[other].text, b, all[first].text);
            goto out;
        }
    }
    st = hd_fail(HEDDLE_ERR_INTERNAL, "ranks ask for the same %s but their fingerprints differ", fields->what);
out:
    return st;
}

/* "the creation of a reshard f32[...] ..." */
static void say_makes(heddle_comm *comm, const hd_fields *fields)
{
    char what[64], line[HD_STAND_BYTES] = "";
    const int is_vowel = fields->what != NULL && strchr("aeiou", fields->what[0]) != NULL;
    snprintf(what, sizeof what, "the creation of a%s %s", is_vowel ? "n" : "",
             fields->what != NULL ? fields->what : "plan");
    for (int f = 0; f < fields->count && fields->line == NULL && strlen(line) < sizeof line / 2; f++) {
        const size_t at = strlen(line);
        snprintf(line + at, sizeof line - at, "%s%s %s", f > 0 ? ", " : "", fields->field[f].name,
                 fields->field[f].text);
    }
    hd_comm_makes(comm, what, fields->line != NULL ? fields->line : line);
}

heddle_status hd_comm_agree_on(heddle_comm *comm, const hd_fields *fields, heddle_status mine)
{
    heddle_status st = HEDDLE_OK;
    say_makes(comm, fields);
    told *all = NULL;
    hd_record own = {.name = hd_fields_hash(fields), .extra = (uint64_t)fields->team};
    int first = 0;
    if (mine == HEDDLE_OK) {
        mine = hd_alloc((void **)&all, (size_t)comm->size, sizeof *all, "what all ranks ask for");
    }
    if (mine == HEDDLE_OK) {
        mine = hd_fault_point(comm, "allgather");
    }
    HD_TRY(hd_comm_agree_with(comm, mine, &own));
    for (int r = 0; r < comm->size; r++) {
        all[r] = (told){.team = (int64_t)comm->records[r].extra, .hash = comm->records[r].name};
    }
    if (find_other(all, comm->size, &first) >= 0) {
        HD_TRY(name_field(comm, fields, all));
    }
out:
    hd_free(all);
    return st;
}

/* --- giving up ---------------------------------------------------------------------------------------------------- */

static heddle_status give_up_as(heddle_comm *comm, heddle_status st, const char *why)
{
    heddle_comm *root = comm->root;
    heddle_status owned = hd_group_owned(root->group, "abort");
    if (owned != HEDDLE_OK) {
        return owned;
    }
    hd_group_raise(root->group, st == HEDDLE_ERR_MISMATCH && hd_comm_enter(comm) == st ? st : HEDDLE_ERR_PEER, why);
    return root->ops->abort(root, why);
}

heddle_status hd_comm_abort(heddle_comm *comm, const char *why)
{
    return give_up_as(comm, HEDDLE_ERR_PEER, why != NULL ? why : "no reason given");
}

heddle_status hd_comm_abort_with(heddle_comm *comm, heddle_status st)
{
    const hd_sentence why = hd_sentence_keep();
    heddle_ignore(give_up_as(comm, st, why.text));
    return hd_sentence_say(&why, st);
}

heddle_status hd_comm_allgather_or_abort(heddle_comm *comm, const void *send, void *recv, size_t bytes)
{
    heddle_status st = hd_fault_point(comm, "allgather");
    st = st == HEDDLE_OK ? hd_comm_gather(comm, HD_CALL_ALLGATHER, send, recv, bytes) : st;
    return st == HEDDLE_OK ? st : hd_comm_abort_with(comm, st);
}

heddle_status hd_comm_give_up(heddle_comm *comm, heddle_status st, char *why, size_t why_bytes)
{
    hd_copy_text(why, why_bytes, heddle_last_error());
    heddle_ignore(give_up_as(comm, st, why));
    hd_comm_quiesce(comm); /* no peer copies from this rank any more */
    hd_comm_withdraw(comm, why, why_bytes);
    return hd_fail(st, "%s", why);
}
