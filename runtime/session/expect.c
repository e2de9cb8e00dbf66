/* What the next switch into a stage returns, before it happens. */
#include "runtime/base/base.h"
#include "session_internal.h"

#include <string.h>

static heddle_status expect(heddle_tensor *like, heddle_box *box, heddle_session *session, const char *stage,
                            int direction)
{
    hd_session_stage *found = NULL;
    hd_session_side side;
    heddle_status st;
    HD_TRY(hd_session_find(&found, session, stage, direction));
    HD_TRY(hd_session_side_make(&side, session, &found->target[direction]));
    memset(like, 0, sizeof(*like));
    like->shape = session->info.shape;
    like->layout = side.layout;
    like->space = session->space;
    like->device = session->device;
    like->capacity_bytes = side.bytes;
    memcpy(like->stride_elems, side.stride_elems, sizeof(like->stride_elems));
    if (box != NULL) {
        *box = side.box;
    }
out:
    return st;
}

static heddle_status need(const char *function, const heddle_tensor *like, const heddle_session *session,
                          const char *stage)
{
    heddle_status st;
    HD_TRY(hd_need(like, function, "like"));
    HD_TRY(hd_need(session, function, "session"));
    st = hd_need(stage, function, "stage");
out:
    return st;
}

heddle_status heddle_session_expect(heddle_tensor *like, heddle_box *box, heddle_session *session, const char *stage)
{
    heddle_status st = need(__func__, like, session, stage);
    return st == HEDDLE_OK ? expect(like, box, session, stage, HD_FORWARD) : st;
}

heddle_status heddle_session_expect_backward(heddle_tensor *like, heddle_box *box, heddle_session *session,
                                             const char *stage)
{
    heddle_status st = need(__func__, like, session, stage);
    return st == HEDDLE_OK ? expect(like, box, session, stage, HD_BACKWARD) : st;
}
