/* The gradients of a chunk: part of body.h, for all variants. */

/* Rows of a state are as many as there are channels, not a multiple of the lanes: the last ones by hand. */
static const REAL *turn(work *w, const REAL *state)
{
    int64_t whole = w->dims.dk / LANES * LANES;
    transpose(w->turned, w->k_row, state, w->v_row, whole, round_up(w->dims.dv, LANES));
    for (int64_t c = 0; c < w->dims.dv; c++) {
        for (int64_t d = whole; d < w->k_row; d++) {
            w->turned[c * w->k_row + d] = d < w->dims.dk ? state[d * w->v_row + c] : 0;
        }
    }
    return w->turned;
}

static void inner_back(void *scratch, const hd_linear_chunk *chunk, const void *left, const void *right)
{
    work *w = scratch;
    int64_t rows = chunk->rows, dk = w->dims.dk, dv = w->dims.dv;
    matrix to_dq = open_rows(w->dq, &chunk->dq, NULL, rows, dk);
    matrix to_dk = open_rows(w->dk, &chunk->dk, NULL, rows, dk);
    matrix to_dv = open_rows(w->dv, &chunk->dv, NULL, rows, dv);
    pack_qkv(w, chunk);
    pack(w, w->d_o, &chunk->d_o, rows, dv);
    transpose(w->vt, w->c_row, w->v, w->v_row, round_up(rows, LANES), round_up(dv, LANES));
    masked_scores(w, w->p, w->q, w->k_row, w->kt, dk, rows);
    masked_scores(w, w->g, w->d_o, w->v_row, w->vt, dv, rows);
    mix(w, to_dq, w->g, 0, w->k, dk, rows);
    mix(w, to_dk, w->g, 1, w->q, dk, rows);
    mix(w, to_dv, w->p, 1, w->d_o, dv, rows);
    for (int b = 0; b < 2; b++) {
        if ((b ? right : left) != NULL) {
            through_state(w, to_dq, (matrix){w->d_o, w->v_row}, turn(w, b ? right : left), dv, dk, rows, b);
        }
    }
    close_rows(&chunk->dq, to_dq, rows, dk);
    close_rows(&chunk->dk, to_dk, rows, dk);
    close_rows(&chunk->dv, to_dv, rows, dv);
}

static void outer_back(void *scratch, const hd_linear_chunk *chunk, const void *left, const void *right)
{
    work *w = scratch;
    int64_t rows = chunk->rows, dk = w->dims.dk, dv = w->dims.dv;
    matrix k = read_rows(w->k, &chunk->k, rows, dk), v = read_rows(w->v, &chunk->v, rows, dv);
    matrix to_dk = open_rows(w->dk, &chunk->dk, &chunk->dk_so_far, rows, dk);
    matrix to_dv = open_rows(w->dv, &chunk->dv, &chunk->dv_so_far, rows, dv);
    for (int b = 0; b < 2; b++) {
        const REAL *state = b ? right : left;
        if (state != NULL) {
            through_state(w, to_dv, k, state, dk, dv, rows, b);
            through_state(w, to_dk, v, turn(w, state), dv, dk, rows, b);
        }
    }
    close_rows(&chunk->dk, to_dk, rows, dk);
    close_rows(&chunk->dv, to_dv, rows, dv);
}
