/* One switch: four ranks hold a video split over time and want it split over space.
 *
 *     cc 01_switch.c $(pkg-config --cflags --libs heddle) $(pkg-config --variable=rpath_flag heddle) && ./a.out
 */
#include <heddle/heddle.h>
#include <stdio.h>

/* Runs on every rank. Here the ranks are threads; with "shm" they would be processes, and nothing below would change.
 */
static heddle_status rank_main(heddle_comm *comm, void *arg)
{
    heddle_reshard_line line; /* a whole reshard is one line of text: what, on which ranks, from -> to */
    heddle_reshard *reshard = NULL;
    heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
    heddle_box from, to; /* which part of the video is mine, before and after */
    void *src = NULL, *dst = NULL;
    const int rank = heddle_comm_rank(comm);
    int64_t wrong = 0;
    heddle_status st = heddle_reshard_parse(&line, arg);

    /* A plan is made once, by all ranks together, and executed any number of times. Buffers from heddle_buffer_alloc
     * can be read by the other ranks directly. */
    st = st ? st : heddle_reshard_create_line(&reshard, comm, &line, NULL);
    st = st ? st : heddle_reshard_get_info(&info, reshard);
    st = st ? st : heddle_buffer_alloc(&src, comm, info.src_bytes, HEDDLE_SPACE_HOST);
    st = st ? st : heddle_buffer_alloc(&dst, comm, info.dst_bytes, HEDDLE_SPACE_HOST);
    st = st ? st : heddle_layout_box(&from, &line.shape, &line.mesh, &line.from, rank);
    st = st ? st : heddle_layout_box(&to, &line.shape, &line.mesh, &line.to, rank);
    if (st == HEDDLE_OK) {
        float *mine = src; /* every element gets its global number t * 7 + s */
        for (int64_t t = 0; t < from.len[0]; t++) {
            for (int64_t s = 0; s < from.len[1]; s++) {
                mine[t * from.len[1] + s] = (float)((from.lo[0] + t) * 7 + from.lo[1] + s);
            }
        }
        st = heddle_reshard_execute(reshard, src, dst, HEDDLE_NO_STREAM);
    }
    if (st == HEDDLE_OK) { /* is it all there? */
        const float *mine = dst;
        for (int64_t t = 0; t < to.len[0]; t++) {
            for (int64_t s = 0; s < to.len[1]; s++) {
                wrong += mine[t * to.len[1] + s] != (float)((to.lo[0] + t) * 7 + to.lo[1] + s);
            }
        }
        printf("rank %d: frames %lld..%lld -> places %lld..%lld, sent %lld bytes by %s, %lld wrong\n", rank,
               (long long)from.lo[0], (long long)(from.lo[0] + from.len[0] - 1), (long long)to.lo[1],
               (long long)(to.lo[1] + to.len[1] - 1), (long long)info.bytes_sent, info.path, (long long)wrong);
    }
    heddle_reshard_destroy(reshard);
    heddle_buffer_free(comm, src);
    heddle_buffer_free(comm, dst);
    return st ? st : wrong ? HEDDLE_ERR_INTERNAL : HEDDLE_OK;
}

int main(void)
{
    /* 10 frames of 7 places on 4 ranks: neither divides, and nothing is padded. */
    static char line[] = "f32[t=10 s=7] on [sp=4]: t@sp -> s@sp";
    heddle_status st = heddle_run_ranks(4, "threads", rank_main, line);
    if (st != HEDDLE_OK) {
        fprintf(stderr, "%s: %s\n", heddle_status_name(st), heddle_last_error());
    }
    return st != HEDDLE_OK;
}
