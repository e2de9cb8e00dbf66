/* Ranks on threads over the fake transport. */
#include "fake_transport.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct fake_thread {
    const fake_run *run;
    int rank;
    int result;
} fake_thread;

static void *thread_main(void *arg)
{
    fake_thread *t = arg;
    heddle_transport table;
    heddle_comm *comm = NULL;
    heddle_comm_options options = t->run->options;
    void *ctx = fake_rank(t->run->world, t->rank, &table);
    if (t->run->before != NULL) {
        t->run->before(ctx, t->rank, &options);
    }
    heddle_status opened = heddle_comm_from_callbacks(&comm, &table, ctx, &options);
    t->result = t->run->fn(opened == HEDDLE_OK ? comm : NULL, opened, t->rank, t->run->arg);
    if (opened == HEDDLE_OK) {
        heddle_comm_destroy(comm);
    } else {
        table.destroy(ctx);
    }
    return NULL;
}

int fake_run_ranks(const fake_run *run, int size)
{
    pthread_t thread[FAKE_RANKS];
    fake_thread each[FAKE_RANKS];
    int failed = 0;
    for (int r = 0; r < size; r++) {
        each[r] = (fake_thread){run, r, 0};
        if (pthread_create(&thread[r], NULL, thread_main, &each[r]) != 0) {
            abort();
        }
    }
    for (int r = 0; r < size; r++) {
        pthread_join(thread[r], NULL);
        failed += each[r].result != 0;
    }
    return failed;
}
