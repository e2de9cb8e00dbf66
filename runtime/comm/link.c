/* Flags between ranks that share memory, the names that they carry, and whether what is named may still be touched. */
#include "runtime/comm/link.h"

static heddle_status count_call(const hd_link *link, const char *call)
{
    return __builtin_expect(link->breaker != NULL, 0) ? link->breaker->call(link->breaker, call) : HEDDLE_OK;
}

heddle_status hd_link_post(hd_link *link, int peer, int slot, uint64_t sequence, const uint64_t *words, int nwords)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(count_call(link, "link post"));
    hd_cell *c = &link->out[peer][slot];
    hd_known *k = &link->known[peer * HD_LINK_SLOTS + slot];
    for (int i = 0; i < nwords; i++) {
        if (i >= k->nwords || k->word[i] != words[i]) {
            atomic_store_explicit(&c->word[i], words[i], memory_order_relaxed);
            k->word[i] = words[i];
        }
    }
    k->nwords = nwords > k->nwords ? nwords : k->nwords;
    /* A locked instruction: what was written before becomes visible before it, and `sleeping` is read after it. */
    atomic_exchange(&c->sequence, link->out_base[peer] + sequence);
    if (peer != link->comm->rank) {
        hd_group_ring(link->comm->group, link->comm->member[peer]);
    }
out:
    return st;
}

static int has_arrived(const hd_link *link, int peer, int slot, uint64_t sequence, uint64_t *words, int nwords)
{
    hd_cell *c = &link->in[peer][slot];
    if (atomic_load(&c->sequence) < link->in_base + sequence) {
        return 0;
    }
    for (int i = 0; i < nwords && words != NULL; i++) {
        words[i] = atomic_load_explicit(&c->word[i], memory_order_relaxed);
    }
    return 1;
}

heddle_status hd_link_poll(hd_link *link, int peer, int slot, uint64_t sequence, uint64_t *words, int nwords,
                           int *arrived)
{
    const heddle_comm *comm = link->comm;
    heddle_status st = HEDDLE_OK;
    *arrived = has_arrived(link, peer, slot, sequence, words, nwords);
    if (!*arrived && __builtin_expect(hd_group_left(comm->group, comm->member[peer]), 0)) {
        *arrived = has_arrived(link, peer, slot, sequence, words, nwords); /* what it posted before it left counts */
        st = *arrived ? HEDDLE_OK : hd_group_closed(comm->group, comm->member[peer], "looking for a flag");
    }
    return st;
}

static heddle_status stand(const hd_link *link, int peer, uint64_t key)
{
    return hd_comm_stand(link->comm,
                         &(hd_wait){.key = key, .peer = {peer}, .npeers = 1, .call = link->call, .line = link->line});
}

static heddle_status say_late(const hd_link *link, int peer, const char *what)
{
    char standing[HD_SENTENCE_BYTES];
    const heddle_comm *comm = link->comm;
    hd_comm_say_standing(standing, sizeof standing, comm, peer);
    return hd_fail(HEDDLE_ERR_TIMEOUT, "rank %d: rank %d did not come in time (%s)%s",
                   hd_comm_root_rank(comm, comm->rank), hd_comm_root_rank(comm, peer), what, standing);
}

heddle_status hd_link_wait(hd_link *link, int peer, int slot, uint64_t sequence, uint64_t *words, int nwords,
                           int64_t deadline_ns, const char *what)
{
    heddle_status st = HEDDLE_OK;
    heddle_comm *comm = link->comm;
    hd_group *group = comm->group;
    int late = 0;
    HD_TRY(count_call(link, "link wait"));
    for (int round = 0;; round++) {
        if (has_arrived(link, peer, slot, sequence, words, nwords)) {
            st = HEDDLE_OK;
            break;
        }
        if (st != HEDDLE_OK) {
            break;
        }
        if (hd_group_looks(group, round)) {
            st = hd_group_look(group, hd_comm_deadline_ms(comm), &deadline_ns, &late);
            if (late) {
                st = say_late(link, peer, what);
            } else if (st == HEDDLE_OK && hd_group_left(group, comm->member[peer])) {
                st = hd_group_closed(group, comm->member[peer], what);
            } else if (st == HEDDLE_OK && group->armed) {
                st = stand(link, peer, sequence);
            }
        }
        if (st == HEDDLE_OK) {
            hd_group_relax(group, round);
        }
    }
    hd_group_disarm(group);
out:
    return st;
}

/* --- names -------------------------------------------------------------------------------------------------------- */

uint64_t hd_window_name(hd_window window, const void *memory, size_t bytes)
{
    uintptr_t offset = (uintptr_t)memory - window.base;
    return bytes == 0 ? 1 : bytes <= window.bytes && offset <= window.bytes - bytes ? (uint64_t)offset + 1 : 0;
}

void *hd_window_at(hd_window window, uint64_t name)
{
    return name - 1 < window.bytes ? (void *)(window.base + (uintptr_t)(name - 1)) : NULL;
}

uint64_t hd_link_name(const hd_link *link, const void *memory, size_t bytes)
{
    return hd_window_name(link->window[link->comm->rank], memory, bytes);
}

void *hd_link_at(const hd_link *link, int peer, uint64_t name)
{
    return hd_window_at(link->window[peer], name);
}

heddle_status hd_comm_heed(heddle_comm *comm)
{
    const hd_control *own = comm->group->control[comm->group->me];
    return __builtin_expect(atomic_load(&own->alarm) != 0, 0) ? hd_comm_check(comm) : HEDDLE_OK;
}
