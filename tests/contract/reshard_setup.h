/* A plan of one line, with buffers filled. */
#ifndef RESHARD_SETUP_H
#define RESHARD_SETUP_H

#include "reshard_check.h"

typedef struct setup {
    heddle_reshard *reshard;
    heddle_reshard_info info;
    void *src, *dst;
} setup;

static inline heddle_status set_up(setup *s, heddle_comm *comm, const char *text, heddle_memory memory)
{
    heddle_status st = HEDDLE_OK;
    heddle_reshard_line line;
    heddle_reshard_options options;
    memset(s, 0, sizeof *s);
    heddle_reshard_options_init(&options);
    options.memory = memory;
    options.tuning = HEDDLE_TUNING_RULES;
    options.space = placed_space(comm);
    options.device = placed_device(comm);
    HD_TRY(heddle_reshard_parse(&line, text));
    HD_TRY(heddle_reshard_create_line(&s->reshard, comm, &line, &options));
    s->info.struct_bytes = sizeof s->info;
    HD_TRY(heddle_reshard_get_info(&s->info, s->reshard));
    HD_TRY(heddle_buffer_alloc(&s->src, comm, s->info.src_bytes + 64, placed_space(comm)));
    HD_TRY(heddle_buffer_alloc(&s->dst, comm, s->info.dst_bytes + 64, placed_space(comm)));
    void *image = placed_borrow(comm, s->src, s->info.src_bytes);
    memset(image, 1 + heddle_comm_rank(comm), s->info.src_bytes);
    placed_return(comm, s->src, image, s->info.src_bytes);
out:
    return st;
}

static inline heddle_status tear_down(setup *s, heddle_comm *comm, heddle_status st)
{
    st = st == HEDDLE_OK ? heddle_comm_barrier(comm) : st;
    heddle_reshard_destroy(s->reshard);
    heddle_buffer_free(comm, s->src);
    heddle_buffer_free(comm, s->dst);
    return st;
}

#endif
