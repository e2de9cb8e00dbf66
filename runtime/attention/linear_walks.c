/* Which walks give what. A gradient is the same sum as a result, with roles changed (kernels/device_linear.h). */
#include "runtime/attention/linear_walks.h"

enum { SEGMENTS = 32, LEAST_ROWS = 256 };

int64_t hd_linear_segment_rows(int64_t n)
{
    const int64_t chunk = HD_DEVICE_LINEAR_ROWS, rows = (n + SEGMENTS - 1) / SEGMENTS;
    return rows <= LEAST_ROWS ? LEAST_ROWS : (rows + chunk - 1) / chunk * chunk;
}

int64_t hd_linear_segments(int64_t n)
{
    const int64_t rows = hd_linear_segment_rows(n);
    return (n + rows - 1) / rows;
}

static hd_device_linear walk_of(const hd_linear_walks *w)
{
    return (hd_device_linear){.dtype = w->dtype,
                              .outer = w->outer,
                              .inner = w->inner,
                              .heads = w->heads,
                              .n = w->n,
                              .dk = w->dk,
                              .dv = w->dv,
                              .segment_rows = hd_linear_segment_rows(w->n),
                              .log2_decay = w->log2_decay};
}

/* States that grow towards the end of the fibre. */
static int descends(int which)
{
    return which == HD_WALKS_KV_RIGHT || which == HD_WALKS_G_RIGHT;
}

int hd_linear_walks_parts(const hd_linear_walks *w, int which)
{
    hd_device_linear of = walk_of(w);
    const int is_gradient = which == HD_WALKS_G_RIGHT || which == HD_WALKS_G_LEFT;
    of.k = is_gradient ? w->q : w->k;
    of.v = is_gradient ? w->d_o : w->v;
    of.descends = descends(which);
    of.states = w->states[which];
    return w->kernels->linear(&of, w->stream);
}

int hd_linear_walks_states(const hd_linear_walks *w, int which, const float *in, float *out, int spreads)
{
    const hd_device_linear_states of = {.count = w->outer * w->inner * w->heads,
                                        .heads = w->heads,
                                        .elems = w->dk * w->dv,
                                        .n = w->n,
                                        .segment_rows = hd_linear_segment_rows(w->n),
                                        .descends = descends(which),
                                        .log2_decay = w->log2_decay,
                                        .in = in,
                                        .out = out,
                                        .states = w->states[which],
                                        .spreads = spreads};
    return w->kernels->linear_states(&of, w->stream);
}

int hd_linear_walks_fold(const hd_linear_walks *w, float *dst, int64_t rows, const float *state, const float *add)
{
    const hd_device_linear_states of = {.count = w->outer * w->inner * w->heads,
                                        .heads = w->heads,
                                        .elems = w->dk * w->dv,
                                        .n = rows,
                                        .segment_rows = rows > 0 ? rows : 1,
                                        .log2_decay = w->log2_decay,
                                        .in = state,
                                        .out = dst,
                                        .states = (float *)(uintptr_t)add};
    return w->kernels->linear_states(&of, w->stream);
}

/* A result from one side; own rows go with the left one. is_second: it is added to what the other side gave. */
static int one_side(const hd_linear_walks *w, hd_device_linear of, int which, int is_second)
{
    const int64_t width = w->dk > w->dv ? w->dk : w->dv;
    const hd_device_tokens first = w->dtype == HEDDLE_F32 || of.gives_f32
                                       ? of.o
                                       : (hd_device_tokens){w->before, w->inner * w->n * w->heads * width,
                                                            w->n * w->heads * width, w->heads * width, width};
    of.descends = descends(which);
    of.states = w->states[which];
    if (w->is_two_sided && is_second) {
        of.before = first;
    } else if (w->is_two_sided) {
        of.o = first;
        of.gives_f32 = 1;
        of.skips_own = 1;
    }
    return w->kernels->linear(&of, w->stream);
}

/* From the states of `near`, and in the two-sided form from those of `far` first. */
static int result(const hd_linear_walks *w, const hd_device_linear *of, int near, int far)
{
    int code = 0;
    if (w->is_two_sided) {
        code = one_side(w, *of, far, 0);
    }
    return code != 0 ? code : one_side(w, *of, near, 1);
}

int hd_linear_walks_forward(const hd_linear_walks *w)
{
    hd_device_linear of = walk_of(w);
    of.q = w->q;
    of.k = w->k;
    of.v = w->v;
    of.o = w->o;
    of.gives_f32 = w->gives_f32;
    of.end = w->is_two_sided ? NULL : w->end;
    return result(w, &of, HD_WALKS_KV_LEFT, HD_WALKS_KV_RIGHT);
}

/* Columns of v are those of the result. */
static hd_device_linear turned(const hd_linear_walks *w)
{
    hd_device_linear of = walk_of(w);
    of.dk = w->dv;
    of.dv = w->dk;
    of.is_turned = 1;
    return of;
}

int hd_linear_walks_dq(const hd_linear_walks *w)
{
    hd_device_linear dq = turned(w);
    dq.q = w->d_o;
    dq.k = w->v;
    dq.v = w->k;
    dq.o = w->dq;
    return result(w, &dq, HD_WALKS_KV_LEFT, HD_WALKS_KV_RIGHT);
}

int hd_linear_walks_dk_dv(const hd_linear_walks *w)
{
    hd_device_linear dk = turned(w), dv = walk_of(w);
    dk.q = w->v;
    dk.k = dv.v = w->d_o;
    dk.v = dv.k = w->q;
    dv.q = w->k;
    dk.o = w->dk_out;
    dv.o = w->dv_out;
    const int code = result(w, &dk, HD_WALKS_G_RIGHT, HD_WALKS_G_LEFT);
    return code != 0 ? code : result(w, &dv, HD_WALKS_G_RIGHT, HD_WALKS_G_LEFT);
}

int hd_linear_walks_whole(const hd_linear_walks *w, int is_back)
{
    int code = 0;
    for (int which = 0; which < HD_WALKS_STATES && code == 0; which++) {
        const int is_wanted = is_back || which == HD_WALKS_KV_LEFT || which == HD_WALKS_KV_RIGHT;
        if (is_wanted && w->states[which] != NULL) {
            code = hd_linear_walks_parts(w, which);
            code = code != 0 ? code : hd_linear_walks_states(w, which, NULL, NULL, 1);
        }
    }
    if (code != 0 || !is_back) {
        return code != 0 ? code : hd_linear_walks_forward(w);
    }
    code = hd_linear_walks_dq(w);
    return code != 0 ? code : hd_linear_walks_dk_dv(w);
}
