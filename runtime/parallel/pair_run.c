/* Calls of a dense pair: gather, products, reduce-scatter. */
#include "runtime/parallel/pair_internal.h"

#include <stdio.h>

static heddle_status check_committed(const heddle_dense_pair *pair, const char *function)
{
    return pair->committed ? HEDDLE_OK
                           : hd_fail(HEDDLE_ERR_ARG,
                                     "%s: call heddle_dense_pair_commit after the parameters were written", function);
}

/* The products do not fail but for lack of memory; the others are then waiting for this rank's sums. */
static heddle_status give_up(heddle_dense_pair *pair, heddle_status st)
{
    char why[400];
    return hd_comm_give_up(pair->comm, st, why, sizeof why);
}

heddle_status heddle_dense_pair_forward(heddle_dense_pair *pair, void *y, const void *x, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(pair));
    if (pair->rows > 0) {
        HD_TRY(HD_NEED(y, x));
    }
    HD_TRY(check_committed(pair, __func__));
    int kept = pair->kept;
    pair->kept = 0;
    st = heddle_reshard_execute(pair->gather, x, pair->x, stream);
    pair->kept = st == HEDDLE_ERR_ARG ? kept : 0; /* refused: nothing has moved */
    HD_TRY(st);
    st = hd_pair_rows_forward(pair);
    if (st != HEDDLE_OK) {
        return give_up(pair, st);
    }
    HD_TRY(heddle_reshard_execute(pair->scatter, pair->y, y, stream));
    pair->kept = pair->options.keep_gathered && !pair->options.forward_only;
    pair->forwards++;
out:
    return st;
}

heddle_status heddle_dense_pair_backward(heddle_dense_pair *pair, void *dx, const void *dy, const void *x,
                                         heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(pair));
    if (pair->rows > 0) {
        HD_TRY(HD_NEED(dx, dy));
    }
    HD_TRY(check_committed(pair, __func__));
    if (pair->options.forward_only) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_dense_pair_backward: the pair was made forward only");
    }
    if (pair->options.keep_gathered && !pair->kept) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_dense_pair_backward: no forward call is kept");
    }
    if (!pair->options.keep_gathered && pair->rows > 0 && x == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_dense_pair_backward: x is NULL and nothing is kept");
    }
    if (!pair->kept) {
        HD_TRY(heddle_reshard_execute(pair->gather, x, pair->x, stream));
    }
    HD_TRY(heddle_reshard_execute(pair->gather, dy, pair->y, stream));
    if (pair->rows > 0) {
        hd_pair_add_columns(pair, pair->gradient[HD_FC2_BIAS], dy);
    }
    st = hd_pair_rows_backward(pair);
    if (st != HEDDLE_OK) {
        return give_up(pair, st);
    }
    HD_TRY(heddle_reshard_execute(pair->scatter, pair->y, dx, stream));
    pair->backwards++;
out:
    return st;
}
