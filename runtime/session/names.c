/* Stage names: counting repetitions, and saying what was probably meant. */
#include "runtime/base/base.h"
#include "session_internal.h"

#include <string.h>

enum { NAME_LENGTH = 63 };

static hd_session_name *lookup(heddle_session *session, const char *stage)
{
    for (int i = 0; i < session->nnames; i++) {
        if (strcmp(session->names[i].name, stage) == 0) {
            return &session->names[i];
        }
    }
    return NULL;
}

heddle_status hd_session_names_make(heddle_session *session)
{
    void *names = NULL;
    const int nstages = session->info.nstages;
    heddle_status st =
        hd_alloc(&names, nstages > 0 ? (size_t)nstages : 1, sizeof(*session->names), "a session's stage names");
    if (st != HEDDLE_OK) {
        return st;
    }
    session->names = names;
    for (int i = 0; i < nstages; i++) {
        heddle_schedule_stage stage;
        st = heddle_schedule_stage_at(&stage, session->schedule, i);
        if (st != HEDDLE_OK) {
            return st;
        }
        hd_session_name *known = lookup(session, stage.name);
        if (known == NULL) {
            known = &session->names[session->nnames++];
            known->name = stage.name;
        }
        known->repetitions++;
    }
    return HEDDLE_OK;
}

/* Edit distance of the first NAME_LENGTH characters. */
static int distance(const char *a, const char *b)
{
    int row[NAME_LENGTH + 1];
    int na = (int)strnlen(a, NAME_LENGTH), nb = (int)strnlen(b, NAME_LENGTH);
    for (int j = 0; j <= nb; j++) {
        row[j] = j;
    }
    for (int i = 1; i <= na; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= nb; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            best = best < row[j] + 1 ? best : row[j] + 1;
            row[j] = best < row[j - 1] + 1 ? best : row[j - 1] + 1;
        }
    }
    return row[nb];
}

static heddle_status unknown(const heddle_session *session, const char *stage)
{
    const char *best = "end";
    int best_distance = distance(stage, best);
    for (int i = 0; i < session->nnames; i++) {
        int d = distance(stage, session->names[i].name);
        if (d < best_distance) {
            best_distance = d;
            best = session->names[i].name;
        }
    }
    return hd_fail(HEDDLE_ERR_ARG,
                   "the schedule of '%s' has no stage '%.*s' among its %d; did you mean '%s'? (the epilogue is 'end')",
                   session->info.model, (int)NAME_LENGTH, stage, session->nnames, best);
}

static heddle_status too_often(const hd_session_name *name, int backward)
{
    return backward ? hd_fail(HEDDLE_ERR_ARG,
                              "stage '%s' is left backward for the %d. time, the schedule has %d repetitions of it; "
                              "heddle_session_rewind begins the next pass",
                              name->name, name->left + 1, name->repetitions)
                    : hd_fail(HEDDLE_ERR_ARG,
                              "stage '%s' is entered for the %d. time, the schedule has %d repetitions of it; "
                              "heddle_session_rewind begins the next pass",
                              name->name, name->entered + 1, name->repetitions);
}

/* Backward from another stage than the one before would be some map, but no gradient. Stages may be left out. */
static heddle_status check_order(const heddle_session *session, const hd_session_step *step)
{
    heddle_schedule_stage last;
    if (step->index <= session->last_left) {
        return HEDDLE_OK;
    }
    heddle_status st = heddle_schedule_stage_at(&last, session->schedule, session->last_left);
    return st != HEDDLE_OK
               ? st
               : hd_fail(HEDDLE_ERR_ARG,
                         "backward from '%s' (repetition %d) cannot follow '%s' (repetition %d), which comes before it "
                         "in the schedule: stages are left in reverse order; heddle_session_rewind begins the next "
                         "pass",
                         step->name == NULL ? "end" : step->name->name, step->repetition, last.name, last.repetition);
}

heddle_status hd_session_find(hd_session_step *out, heddle_session *session, const char *stage, int backward)
{
    heddle_schedule_edge edge;
    heddle_status st;
    hd_session_name *known = lookup(session, stage);
    memset(out, 0, sizeof(*out));
    if (known == NULL && strcmp(stage, "end") != 0) {
        return unknown(session, stage);
    }
    out->name = known;
    out->index = session->info.nstages;
    if (known != NULL) {
        const int made = backward ? known->left : known->entered;
        if (made >= known->repetitions) {
            return too_often(known, backward);
        }
        out->repetition = backward ? known->repetitions - 1 - made : made;
        out->index = heddle_schedule_find(session->schedule, known->name, out->repetition);
    }
    HD_TRY(backward ? check_order(session, out) : HEDDLE_OK);
    HD_TRY(heddle_schedule_edge_at(&edge, session->schedule, out->index));
    out->target = backward ? heddle_layout_dual(&edge.from) : edge.to;
out:
    return st;
}
