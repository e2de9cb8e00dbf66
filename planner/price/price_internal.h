/* Shared by the files that price. */
#ifndef HD_PRICE_INTERNAL_H
#define HD_PRICE_INTERNAL_H

#include "planner/price/price.h"

/* A stage on the rank that has most of it. Counts are of that rank. */
typedef struct hd_share {
    const hd_model_stage *stage;
    const hd_method *method;
    hd_method_group group; /* of a whole dim: one member */
    int64_t rows;          /* tokens, text that joins them included */
    int64_t samples;       /* of the batch */
    int64_t queries;       /* rows that it attends for, once the heads are dealt */
    int64_t heads;         /* of them */
    double keys;           /* that one of these sees, on average */
} hd_share;

heddle_status hd_share_make(hd_share *out, const hd_pricer *pricer, int k, const heddle_layout *layout,
                            const hd_method *method);
void hd_share_free(hd_share *share);

/* The schedule is one of this model. */
heddle_status hd_price_need_schedule(const heddle_model *model, const heddle_schedule *schedule);

/* What it does, in picoseconds: all of it, and attention alone; again: what recomputing does before the way back. */
typedef struct hd_work_done {
    int64_t all_ps, attention_ps;
    int64_t back_ps, attention_back_ps;
    int64_t again_ps, attention_again_ps;
} hd_work_done;

hd_work_done hd_share_work(const hd_share *share, const hd_pricer *pricer);
/* What the stage keeps and needs while it runs; method: what its object does. */
void hd_share_memory(hd_price *out, const hd_share *share, const hd_pricer *pricer, const hd_method_cost *method);

/* Picoseconds of an exchange that takes its slowest level's: the larger of what a rank sends and receives there. */
int64_t hd_price_exchange(const hd_pricer *pricer, hd_exchange exchange, int group, const hd_link_bytes *link,
                          double part);
/* Seconds of work that all ranks of the mesh do at once; see hd_machine_work_s. */
double hd_price_work_s(const hd_pricer *pricer, hd_work work, heddle_dtype dtype, double amount, double size);
int64_t hd_price_ps(double seconds);
/* Of two things that run at once, what each takes alone: picoseconds that are saved. */
int64_t hd_price_hidden(const heddle_machine *machine, int64_t work_ps, int64_t transfer_ps);
void hd_price_add_links(hd_price *out, const hd_link_bytes *link, int nlevels);
/* The exchanges of one call: transfer and what of it hides behind `attention_ps` of work. */
void hd_price_method(hd_price *out, const hd_share *share, const hd_pricer *pricer, const heddle_layout *layout,
                     int backward, int64_t attention_ps);
/* Elements of the largest box of a layout without its channels; blocks with lengths of their own, too. */
int64_t hd_price_rows(const heddle_shape *shape, const heddle_mesh *mesh, const heddle_layout *layout);

#endif
