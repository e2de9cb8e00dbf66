/* What can be asked before there is an object: rows and traffic of a rank. Pure. */
#include "runtime/attention/attention_internal.h"

void hd_attn_plan(heddle_attention_traffic *out, const hd_attn_problem *problem)
{
    hd_sends s;
    hd_method_sends(&s, problem->method, &problem->members, problem->rank, hd_group_all(&problem->members));
    *out = (heddle_attention_traffic){(int64_t)s.forward_bytes, s.forward_messages, (int64_t)s.backward_bytes,
                                      s.backward_messages};
}

/* Keys seen by the queries 0 .. end-1, each of which sees those up to its own, but at most `most`. */
static int64_t seen_before(int64_t end, int64_t most)
{
    return end <= most ? end * (end + 1) / 2 : most * (most + 1) / 2 + (end - most) * most;
}

int64_t hd_attn_pairs(const hd_attn_problem *problem)
{
    const hd_row_set *queries = &problem->held[problem->rank / problem->spread];
    int64_t pairs = 0;
    for (int64_t b = 0; b < problem->batch; b++) {
        int64_t keys = problem->key_length[b];
        for (int i = 0; i < queries->nsegs; i++) {
            const hd_seg *q = &queries->seg[i];
            pairs +=
                problem->options.causal ? seen_before(q->lo + q->len, keys) - seen_before(q->lo, keys) : q->len * keys;
        }
    }
    return pairs;
}

heddle_status heddle_attention_local_rows(heddle_attention_rows *out, const heddle_shape *shape,
                                          const heddle_mesh *mesh, const heddle_layout *layout,
                                          heddle_placement placement, int rank)
{
    heddle_status st = HEDDLE_OK;
    hd_attn_problem problem;
    heddle_attention_options options;
    HD_TRY(HD_NEED(out, shape, mesh, layout));
    heddle_attention_options_init(&options);
    options.method = HEDDLE_ATTENTION_GATHER_KV; /* takes any axes */
    options.placement = placement;
    HD_TRY(hd_attn_problem_make(&problem, shape, mesh, layout, &options, rank));
    *out = problem.member_rows[problem.rank];
    hd_attn_problem_free(&problem);
out:
    return st;
}

heddle_status heddle_attention_plan_traffic(heddle_attention_traffic *out, const heddle_shape *shape,
                                            const heddle_mesh *mesh, const heddle_layout *layout,
                                            const heddle_attention_options *options, int rank)
{
    heddle_status st = HEDDLE_OK;
    hd_attn_problem problem;
    HD_TRY(HD_NEED(out, shape, mesh, layout));
    HD_TRY(hd_attn_problem_make(&problem, shape, mesh, layout, options, rank));
    hd_attn_plan(out, &problem);
    hd_attn_problem_free(&problem);
out:
    return st;
}
