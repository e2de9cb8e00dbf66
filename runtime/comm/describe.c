/* What a communicator says of itself: which ranks it reaches and why, by what kind of way. */
#include "runtime/comm/comm_private.h"

#include <stdio.h>
#include <string.h>

const hd_traits hd_memory_traits = {.link = HEDDLE_LINK_MEMORY, .spaces = 1u << HEDDLE_SPACE_HOST};

static int host_of(const heddle_comm *comm, int rank)
{
    return hd_pretended_host(hd_comm_root_rank(comm, rank), comm->root->size, comm->options.pretend_hosts);
}

void hd_comm_say_reach(char *text, size_t bytes, const heddle_comm *comm, int rank)
{
    if (rank == comm->rank) {
        snprintf(text, bytes, "it is this rank");
    } else if (comm->window[rank].bytes > 0) {
        snprintf(text, bytes, "%s", comm->group->team != NULL ? "a thread of this process" : "memory of this host");
    } else if (comm->options.force_messages) {
        snprintf(text, bytes, "messages by %s: they are forced (force_messages)", comm->name);
    } else if (comm->options.pretend_hosts > 0 && host_of(comm, rank) != host_of(comm, comm->rank)) {
        snprintf(text, bytes, "messages by %s: pretended host %d, this is %d (pretend_hosts)", comm->name,
                 host_of(comm, rank), host_of(comm, comm->rank));
    } else {
        snprintf(text, bytes, "messages by %s: another host, user or namespace", comm->name);
    }
}

/* What is known of the messages that some ranks need. */
static void say_messages(char *text, size_t bytes, const heddle_comm *comm)
{
    static const char *const link[] = {"", "", " through memory", " by network"};
    const hd_traits *way = &comm->messages;
    text[0] = 0;
    if (comm->nlocal == comm->size) {
        return;
    }
    size_t at = (size_t)snprintf(text, bytes, ", messages%s", link[way->link]);
    if (way->latency_ns > 0) {
        at += (size_t)snprintf(text + at, bytes - at, " %.3g us", (double)way->latency_ns * 1e-3);
    }
    if (way->bytes_per_s > 0) {
        snprintf(text + at, bytes - at, " %.3g GB/s", (double)way->bytes_per_s * 1e-9);
    }
}

void hd_comm_bind_and_describe(heddle_comm *comm, const char *why)
{
    hd_group *group = comm->group;
    int cores = group->n > 1 || comm->options.bind == HEDDLE_BIND_CORE
                    ? hd_topology_bind(comm->options.bind, group->me, group->n, &comm->cpus_before)
                    : 0;
    comm->bound = cores > 0;
    char bound[64] = "not bound to cores";
    if (cores > 0) {
        snprintf(bound, sizeof bound, "bound to %d core%s each", cores, cores == 1 ? "" : "s");
    }
    char reach[128] = "";
    say_messages(reach, sizeof reach, comm);
    size_t at = strlen(reach);
    if (comm->options.force_messages) {
        snprintf(reach + at, sizeof reach - at, "%s", at > 0 ? " forced" : ", messages forced");
    } else if (comm->options.pretend_hosts > 0) {
        snprintf(reach + at, sizeof reach - at, ", pretending %d hosts", comm->options.pretend_hosts);
    }
    snprintf(comm->describe, sizeof comm->describe, "%s: %d rank%s, %d on this host%s, %s, %s%s%s", comm->name,
             comm->size, comm->size == 1 ? "" : "s", group->n, reach, bound,
             group->spins > 0 || group->n == 1 ? "waits spin first" : "waits yield at once", why != NULL ? "; " : "",
             why != NULL ? why : "");
}
