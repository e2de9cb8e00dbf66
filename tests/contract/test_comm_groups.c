/* Groups along mesh axes, many ranks, opening from the environment. */
#include "case.h"
#include "check.h"

#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const transports[] = {"threads", "shm", "tcp"};

static heddle_status use_group(heddle_comm *group, int wanted_rank, int wanted_size, const int *parents)
{
    heddle_status st = HEDDLE_OK;
    int all[64];
    int n = heddle_comm_size(group);
    int me = heddle_comm_rank(group);
    int parent = parents[me];
    int64_t sum = parent;
    int64_t wanted_sum = 0;
    int got = -1;
    hd_link *link = NULL;
    CHECK(n == wanted_size && me == wanted_rank);
    HD_TRY(heddle_comm_barrier(group));
    HD_TRY(heddle_comm_allgather(group, &parent, all, sizeof parent));
    for (int r = 0; r < n; r++) {
        CHECK(all[r] == parents[r]);
        wanted_sum += parents[r];
    }
    HD_TRY(heddle_comm_allreduce_sum(group, &sum, 1, HEDDLE_I64));
    CHECK(sum == wanted_sum);
    HD_TRY(heddle_comm_sendrecv(group, &parent, sizeof parent, (me + 1) % n, &got, sizeof got, (me + n - 1) % n,
                                HEDDLE_NO_STREAM));
    CHECK(got == parents[(me + n - 1) % n]);
    HD_TRY(hd_link_create(&link, group));
    uint64_t word = (uint64_t)parent;
    for (int r = 0; r < n; r++) {
        if (heddle_comm_reaches(group, r)) {
            HD_TRY(hd_link_post(link, r, 3, 1, &word, 1));
        }
    }
    for (int r = 0; r < n; r++) {
        if (heddle_comm_reaches(group, r)) {
            HD_TRY(hd_link_wait(link, r, 3, 1, &word, 1, hd_comm_deadline_ns(group, 0), "group"));
            CHECK(word == (uint64_t)parents[r]);
        }
    }
out:
    hd_link_destroy(link);
    return st;
}

/* Every axis of a mesh several times (memory is used again), nested groups, then a bad axis. */
static heddle_status axis_rank(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    const heddle_mesh *mesh = arg;
    int coords[HEDDLE_MAX_AXES];
    heddle_comm *group = NULL;
    heddle_comm *nested = NULL;
    HD_TRY(heddle_mesh_coords(coords, mesh, heddle_comm_rank(comm)));
    for (int turn = 0; turn < 3 * mesh->naxes; turn++) {
        int axis = turn % mesh->naxes;
        int parents[64];
        int stride = 1;
        for (int a = axis + 1; a < mesh->naxes; a++) {
            stride *= mesh->axis[a].size;
        }
        for (int i = 0; i < mesh->axis[axis].size; i++) {
            parents[i] = heddle_comm_rank(comm) + (i - coords[axis]) * stride;
        }
        HD_TRY(heddle_comm_axis_group(&group, comm, mesh, axis));
        HD_TRY(use_group(group, coords[axis], mesh->axis[axis].size, parents));
        const heddle_mesh line = {.naxes = 1, .axis = {{"x", mesh->axis[axis].size}}};
        HD_TRY(heddle_comm_axis_group(&nested, group, &line, 0));
        HD_TRY(use_group(nested, coords[axis], mesh->axis[axis].size, parents));
        heddle_comm_destroy(nested);
        heddle_comm_destroy(group);
        group = NULL;
        nested = NULL;
    }
    CHECK(heddle_comm_axis_group(&group, comm, mesh, mesh->naxes) == HEDDLE_ERR_ARG);
    const heddle_mesh other = {.naxes = 1, .axis = {{"x", heddle_comm_size(comm) + 1}}};
    CHECK(heddle_comm_axis_group(&group, comm, &other, 0) == HEDDLE_ERR_ARG);
out:
    heddle_comm_destroy(nested);
    heddle_comm_destroy(group);
    return st;
}

/* Every set of axes, none and all included; members by their coordinates. Then nested: an axis of the group's own
 * mesh. Then axes that are not there. */
static heddle_status axes_rank(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    const heddle_mesh *mesh = arg;
    int mine[HEDDLE_MAX_AXES];
    heddle_comm *group = NULL;
    heddle_comm *nested = NULL;
    HD_TRY(heddle_mesh_coords(mine, mesh, heddle_comm_rank(comm)));
    for (unsigned axes = 0; axes < 1u << mesh->naxes; axes++) {
        heddle_mesh inner = {.naxes = 0};
        int parents[64];
        int n = 0;
        int me = -1;
        for (int r = 0; r < heddle_mesh_size(mesh); r++) { /* ascending ranks = the group's mesh, first axis major */
            int coords[HEDDLE_MAX_AXES];
            int same = 1;
            HD_TRY(heddle_mesh_coords(coords, mesh, r));
            for (int a = 0; a < mesh->naxes; a++) {
                same = same && ((axes >> a & 1u) || coords[a] == mine[a]);
            }
            if (same) {
                me = r == heddle_comm_rank(comm) ? n : me;
                parents[n++] = r;
            }
        }
        for (int a = 0; a < mesh->naxes; a++) {
            if (axes >> a & 1u) {
                inner.axis[inner.naxes++] = mesh->axis[a];
            }
        }
        HD_TRY(heddle_comm_axes_group(&group, comm, mesh, axes));
        HD_TRY(use_group(group, me, n, parents));
        if (inner.naxes > 0) {
            int coords[HEDDLE_MAX_AXES];
            int last = inner.axis[inner.naxes - 1].size;
            HD_TRY(heddle_mesh_coords(coords, &inner, me));
            HD_TRY(heddle_comm_axes_group(&nested, group, &inner, 1u << (inner.naxes - 1)));
            HD_TRY(use_group(nested, coords[inner.naxes - 1], last, parents + me / last * last));
        }
        heddle_comm_destroy(nested);
        heddle_comm_destroy(group);
        group = NULL;
        nested = NULL;
    }
    CHECK(heddle_comm_axes_group(&group, comm, mesh, 1u << mesh->naxes) == HEDDLE_ERR_ARG);
    CHECK(heddle_comm_axes_group(&group, comm, mesh, 0x80000000u) == HEDDLE_ERR_ARG);
    CHECK(heddle_comm_axes_group(NULL, comm, mesh, 1) == HEDDLE_ERR_ARG);
    CHECK(heddle_comm_axes_group(&group, comm, NULL, 1) == HEDDLE_ERR_ARG);
    const heddle_mesh other = {.naxes = 1, .axis = {{"x", heddle_comm_size(comm) + 1}}};
    CHECK(heddle_comm_axes_group(&group, comm, &other, 1) == HEDDLE_ERR_ARG);
    CHECK(group == NULL);
out:
    heddle_comm_destroy(nested);
    heddle_comm_destroy(group);
    return st;
}

static const heddle_mesh meshes[] = {
    {.naxes = 1, .axis = {{"sp", 1}}},
    {.naxes = 2, .axis = {{"node", 2}, {"gpu", 2}}},
    {.naxes = 2, .axis = {{"node", 2}, {"gpu", 3}}},
    {.naxes = 3, .axis = {{"a", 2}, {"b", 3}, {"c", 2}}},
    {.naxes = 4, .axis = {{"pp", 2}, {"dp", 2}, {"tp", 2}, {"sp", 2}}},
};

/* Hosts as they are, one that is pretended, and two. */
static void on_meshes(heddle_rank_main fn)
{
    for (size_t t = 0; t < (HD_SEES_PROCESSES ? sizeof transports / sizeof transports[0] : 1); t++) {
        for (size_t m = 0; m < sizeof meshes / sizeof meshes[0]; m++) {
            for (int hosts = 0; hosts <= 2; hosts++) {
                heddle_comm_options options;
                heddle_comm_options_init(&options);
                options.pretend_hosts = hosts;
                HD_OK(heddle_run_ranks_with(heddle_mesh_size(&meshes[m]), transports[t], &options, fn,
                                            (void *)&meshes[m]));
            }
        }
    }
}

HD_CASE(axes_groups)
{
    on_meshes(axes_rank);
}

HD_CASE(axis_groups)
{
    on_meshes(axis_rank);
}

/* --- many ranks --------------------------------------------------------------------------------------------------- */

static heddle_status small_rank(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_status st = HEDDLE_OK;
    int all[64];
    int me = heddle_comm_rank(comm);
    HD_TRY(heddle_comm_barrier(comm));
    HD_TRY(heddle_comm_allgather(comm, &me, all, sizeof me));
    for (int r = 0; r < heddle_comm_size(comm); r++) {
        CHECK(all[r] == r);
    }
out:
    return st;
}

HD_CASE(many_ranks)
{
    for (size_t t = 0; t < sizeof transports / sizeof transports[0]; t++) {
        HD_OK(heddle_run_ranks(16, transports[t], small_rank, NULL));
        if (strcmp(transports[t], "tcp") != 0) { /* a connection between every two takes its time */
            HD_OK(heddle_run_ranks(64, transports[t], small_rank, NULL));
        }
    }
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

static int open_in_child(int rank, int size, const char *where)
{
    char text[16];
    snprintf(text, sizeof text, "%d", rank);
    setenv("RANK", text, 1);
    snprintf(text, sizeof text, "%d", size);
    setenv("WORLD_SIZE", text, 1);
    setenv("LOCAL_WORLD_SIZE", text, 1);
    for (int again = 0; again < 3; again++) { /* the same key one after another */
        heddle_comm *comm = NULL;
        heddle_status st = heddle_comm_open(&comm, where, NULL);
        st = st == HEDDLE_OK ? small_rank(comm, NULL) : st;
        if (st != HEDDLE_OK || heddle_comm_rank(comm) != rank || strstr(heddle_comm_describe(comm), "shm") == NULL) {
            fprintf(stderr, "rank %d, open %d: %s\n", rank, again, heddle_last_error());
            return 1;
        }
        heddle_comm_destroy(comm);
    }
    return 0;
}

HD_CASE(opens_from_environment)
{
    char port[16];
    snprintf(port, sizeof port, "%d", (int)getpid());
    setenv("MASTER_PORT", port, 1);
    for (int w = 0; w < 2; w++) {
        pid_t pid[4];
        for (int r = 0; r < 4; r++) {
            pid[r] = fork();
            if (pid[r] == 0) {
                _exit(open_in_child(r, 4, w == 0 ? "shm" : "auto"));
            }
        }
        for (int r = 0; r < 4; r++) {
            int wait_status = 0;
            assert_int_equal(waitpid(pid[r], &wait_status, 0), pid[r]);
            assert_int_equal(wait_status, 0);
        }
    }
}

HD_CASE(opening_refuses)
{
    heddle_comm *comm = NULL;
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    HD_OK(heddle_comm_open(&comm, "auto", NULL));
    assert_int_equal(heddle_comm_size(comm), 1);
    assert_non_null(strstr(heddle_comm_describe(comm), "auto chose self"));
    heddle_comm_destroy(comm);
    heddle_comm_destroy(NULL);
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, heddle_comm_open(&comm, "shm", NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_comm_open(&comm, "threads", NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_comm_open(&comm, NULL, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_comm_open(NULL, "self", NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_run_ranks(2, "threads", NULL, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_run_ranks(2, NULL, NULL, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_comm_open(&comm, "carrier pigeon", NULL));
    HD_FAILS(HEDDLE_ERR_PARSE, heddle_comm_open(&comm, "fault(:self", NULL));
    HD_FAILS(HEDDLE_ERR_PARSE, heddle_comm_open(&comm, "fault(fail=x):self", NULL));
    HD_FAILS(HEDDLE_ERR_PARSE, heddle_comm_open(&comm, "fault(delay=5@1):self", NULL));
    HD_OK(heddle_comm_open(&comm, "fault(fail=2@0,delay=0.1ms,reorder=3):self", NULL));
    HD_OK(heddle_comm_barrier(comm));
    HD_FAILS(HEDDLE_ERR_TRANSPORT, heddle_comm_barrier(comm));
    HD_OK(heddle_comm_barrier(comm));
    heddle_comm_destroy(comm);
    HD_FAILS(HEDDLE_ERR_ARG, heddle_run_ranks(0, "threads", small_rank, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_run_ranks(2, "mpi", small_rank, NULL));
    HD_FAILS(HEDDLE_ERR_PARSE, heddle_run_ranks(2, "fault(nonsense):shm", small_rank, NULL));
    options.struct_bytes = 3;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_comm_open(&comm, "self", &options));
    setenv("RANK", "4", 1);
    setenv("WORLD_SIZE", "4", 1);
    HD_FAILS(HEDDLE_ERR_ARG, heddle_comm_open(&comm, "shm", NULL));
    setenv("RANK", "1", 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, heddle_comm_open(&comm, "shm", NULL));
    setenv("LOCAL_WORLD_SIZE", "4", 1);
    heddle_comm_options_init(&options);
    options.deadline_ms = 200;
    HD_FAILS(HEDDLE_ERR_TIMEOUT, heddle_comm_open(&comm, "shm", &options)); /* nobody else comes */
    setenv("RANK", "0", 1);
    HD_FAILS(HEDDLE_ERR_TIMEOUT, heddle_comm_open(&comm, "shm", &options));
    assert_non_null(strstr(heddle_last_error(), "rank 1"));
}
