/* Switches that end the stage before them: its last kernel, gate and residual, stores each row where it belongs in the
 * layout of the stage that comes, and x is neither written nor read in between. What ranks store, count and wait for is
 * the same as without. */
#ifndef HD_SESSION_INNER_H
#define HD_SESSION_INNER_H

#include "kernels/device_rows.h"

#include <heddle/session.h>

/* The switch that comes next would take the change of x as well, of what lies there. */
int hd_session_takes_gate(const heddle_session *session, const heddle_tensor *x);
/* heddle_session_enter of x with its change, where hd_session_takes_gate has said so. */
heddle_status hd_session_enter_gated(heddle_session *session, const char *stage, heddle_tensor *x,
                                     const hd_device_gate *gate, heddle_stream stream);

#endif
