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

static hd_session_name *count_name(heddle_session *session, const char *name)
{
    hd_session_name *known = lookup(session, name);
    if (known == NULL) {
        known = &session->names[session->nnames++];
        known->name = name;
    }
    known->repetitions++;
    return known;
}

/* Edge i of the schedule leads into stage i, the last one to "end". */
heddle_status hd_session_stages_make(heddle_session *session)
{
    const int nstages = session->info.nstages;
    void *memory = NULL;
    heddle_status st;
    HD_TRY(hd_alloc(&memory, (size_t)nstages + 1, sizeof(*session->names), "a session's stage names"));
    session->names = memory;
    HD_TRY(hd_alloc(&memory, (size_t)nstages + 1, sizeof(*session->stages), "a session's stages"));
    session->stages = memory;
    for (int i = 0; i <= nstages; i++) {
        hd_session_stage *to = &session->stages[i];
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
        HD_TRY(heddle_schedule_edge_at(&edge, session->schedule, i));
        to->name = "end";
        to->target[HD_FORWARD] = edge.to;
        to->target[HD_BACKWARD] = heddle_layout_dual(&edge.from);
        if (i < nstages) {
            HD_TRY(heddle_schedule_stage_at(&stage, session->schedule, i));
            to->name = stage.name;
            to->repetition = stage.repetition;
            to->counter = count_name(session, stage.name);
        }
    }
out:
    return st;
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
static heddle_status check_order(const heddle_session *session, const hd_session_stage *stage)
{
    const hd_session_stage *last = &session->stages[session->last_left];
    return stage <= last
               ? HEDDLE_OK
               : hd_fail(HEDDLE_ERR_ARG,
                         "backward from '%s' (repetition %d) cannot follow '%s' (repetition %d), which comes before it "
                         "in the schedule: stages are left in reverse order; heddle_session_rewind begins the next "
                         "pass",
                         stage->name, stage->repetition, last->name, last->repetition);
}

heddle_status hd_session_find(hd_session_stage **out, heddle_session *session, const char *stage, int direction)
{
    const int backward = direction == HD_BACKWARD;
    int index = session->info.nstages;
    const hd_session_name *known = lookup(session, stage);
    if (known == NULL && strcmp(stage, "end") != 0) {
        return unknown(session, stage);
    }
    if (known != NULL) {
        const int made = backward ? known->left : known->entered;
        if (made >= known->repetitions) {
            return too_often(known, backward);
        }
        index = heddle_schedule_find(session->schedule, known->name, backward ? known->repetitions - 1 - made : made);
    }
    *out = &session->stages[index];
    return backward ? check_order(session, *out) : HEDDLE_OK;
}
