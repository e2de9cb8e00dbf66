/* The table of a variant: after its kernels, ATTN_SLOTS, ATTN_SLOT and ATTN_NAME. ATTN(name) are the scalar rows,
 * ATTN_BEST(name) what a variant with vectors does itself. */
const hd_kernels ATTN_SLOTS = {
    .ATTN_SLOT =
        {
            .name = ATTN_NAME,
            .real_bytes = sizeof(REAL),
            .scratch_bytes = ATTN_BEST(scratch_bytes),
            .forward = ATTN_BEST(forward),
            .finish = ATTN(finish),
            .backward = ATTN_BEST(backward),
            .row_dots = ATTN(row_dots),
            .scores = ATTN_BEST(scores),
            .softmax = ATTN_BEST(softmax),
            .softmax_back = ATTN(softmax_back),
            .mix = ATTN_BEST(mix),
            .mix_back = ATTN_BEST(mix_back),
            .add = ATTN(add),
            .fill = ATTN(fill),
            .add_dots = ATTN(add_dots),
        },
};
