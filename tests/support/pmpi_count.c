#include "pmpi_count.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { MAX_NAMES = 32, MAX_DESTS = 1024, MAX_PERSISTENT = 4096 };

typedef struct tally {
    char name[MPI_MAX_OBJECT_NAME];
    int64_t bytes[MAX_DESTS];
    int64_t messages[MAX_DESTS];
} tally;

typedef struct persistent {
    MPI_Request request;
    tally *to;
    int dest;
    int64_t bytes;
} persistent;

static tally tallies[MAX_NAMES];
static int ntallies;
static persistent kept[MAX_PERSISTENT];
static int nkept;

pmpi_count_reset_fn pmpi_count_reset;
pmpi_count_read_fn pmpi_count_read;

EXPORT void pmpi_count_reset(void)
{
    for (int i = 0; i < ntallies; i++) {
        memset(tallies[i].bytes, 0, sizeof(tallies[i].bytes));
        memset(tallies[i].messages, 0, sizeof(tallies[i].messages));
    }
}

EXPORT int pmpi_count_read(const char *comm_name, int64_t *bytes, int64_t *messages, int nranks)
{
    for (int i = 0; i < ntallies; i++) {
        if (strcmp(tallies[i].name, comm_name) == 0) {
            for (int r = 0; r < nranks; r++) {
                bytes[r] = r < MAX_DESTS ? tallies[i].bytes[r] : -1;
                messages[r] = r < MAX_DESTS ? tallies[i].messages[r] : -1;
            }
            return 0;
        }
    }
    return -1;
}

static void give_up(const char *what)
{
    fprintf(stderr, "pmpi_count: too many %s: counts would be wrong\n", what);
    abort();
}

static tally *tally_of(MPI_Comm comm)
{
    char name[MPI_MAX_OBJECT_NAME] = "";
    int length = 0;
    PMPI_Comm_get_name(comm, name, &length);
    for (int i = 0; i < ntallies; i++) {
        if (strcmp(tallies[i].name, name) == 0) {
            return &tallies[i];
        }
    }
    if (ntallies == MAX_NAMES) {
        give_up("communicator names");
    }
    snprintf(tallies[ntallies].name, sizeof(tallies[ntallies].name), "%s", name);
    return &tallies[ntallies++];
}

static int64_t bytes_of(MPI_Count count, MPI_Datatype type)
{
    MPI_Count size = 0;
    PMPI_Type_size_x(type, &size);
    return (int64_t)(size * count);
}

static void add(tally *to, int dest, int64_t bytes)
{
    if (dest == MPI_PROC_NULL) {
        return;
    }
    if (dest >= MAX_DESTS) {
        give_up("destinations");
    }
    to->bytes[dest] += bytes;
    to->messages[dest]++;
}

static void count_send(MPI_Comm comm, int dest, int count, MPI_Datatype type)
{
    add(tally_of(comm), dest, bytes_of(count, type));
}

/* --- point to point ----------------------------------------------------------------------------------------------- */

#define BLOCKING(Name)                                                                                                 \
    EXPORT int MPI_##Name(const void *buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm)             \
    {                                                                                                                  \
        count_send(comm, dest, count, type);                                                                           \
        return PMPI_##Name(buf, count, type, dest, tag, comm);                                                         \
    }
BLOCKING(Send)
BLOCKING(Ssend)
BLOCKING(Rsend)
BLOCKING(Bsend)

#define IMMEDIATE(Name)                                                                                                \
    EXPORT int MPI_##Name(const void *buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm,             \
                          MPI_Request *request)                                                                        \
    {                                                                                                                  \
        count_send(comm, dest, count, type);                                                                           \
        return PMPI_##Name(buf, count, type, dest, tag, comm, request);                                                \
    }
IMMEDIATE(Isend)
IMMEDIATE(Issend)
IMMEDIATE(Irsend)
IMMEDIATE(Ibsend)

#define PERSISTENT(Name)                                                                                               \
    EXPORT int MPI_##Name(const void *buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm,             \
                          MPI_Request *request)                                                                        \
    {                                                                                                                  \
        int code = PMPI_##Name(buf, count, type, dest, tag, comm, request);                                            \
        if (nkept == MAX_PERSISTENT) {                                                                                 \
            give_up("persistent sends");                                                                               \
        }                                                                                                              \
        kept[nkept++] = (persistent){*request, tally_of(comm), dest, bytes_of(count, type)};                           \
        return code;                                                                                                   \
    }
PERSISTENT(Send_init)
PERSISTENT(Ssend_init)
PERSISTENT(Rsend_init)
PERSISTENT(Bsend_init)

static void count_start(MPI_Request request)
{
    for (int i = 0; i < nkept; i++) {
        if (kept[i].request == request) {
            add(kept[i].to, kept[i].dest, kept[i].bytes);
        }
    }
}

EXPORT int MPI_Start(MPI_Request *request)
{
    count_start(*request);
    return PMPI_Start(request);
}

EXPORT int MPI_Startall(int count, MPI_Request requests[])
{
    for (int i = 0; i < count; i++) {
        count_start(requests[i]);
    }
    return PMPI_Startall(count, requests);
}

EXPORT int MPI_Request_free(MPI_Request *request)
{
    for (int i = 0; i < nkept; i++) {
        if (kept[i].request == *request) {
            kept[i] = kept[--nkept];
        }
    }
    return PMPI_Request_free(request);
}

EXPORT int MPI_Sendrecv(const void *sendbuf, int sendcount, MPI_Datatype sendtype, int dest, int sendtag, void *recvbuf,
                        int recvcount, MPI_Datatype recvtype, int source, int recvtag, MPI_Comm comm,
                        MPI_Status *status)
{
    count_send(comm, dest, sendcount, sendtype);
    return PMPI_Sendrecv(sendbuf, sendcount, sendtype, dest, sendtag, recvbuf, recvcount, recvtype, source, recvtag,
                         comm, status);
}

/* --- all-to-all: a message to every rank -------------------------------------------------------------------------- */

static void count_all(MPI_Comm comm, int count, const int *counts, MPI_Datatype type, const MPI_Datatype *types)
{
    int size = 0;
    tally *to = tally_of(comm);
    PMPI_Comm_size(comm, &size);
    for (int dest = 0; dest < size; dest++) {
        add(to, dest, bytes_of(counts != NULL ? counts[dest] : count, types != NULL ? types[dest] : type));
    }
}

EXPORT int MPI_Alltoall(const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount,
                        MPI_Datatype recvtype, MPI_Comm comm)
{
    count_all(comm, sendcount, NULL, sendtype, NULL);
    return PMPI_Alltoall(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
}

EXPORT int MPI_Ialltoall(const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount,
                         MPI_Datatype recvtype, MPI_Comm comm, MPI_Request *request)
{
    count_all(comm, sendcount, NULL, sendtype, NULL);
    return PMPI_Ialltoall(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm, request);
}

EXPORT int MPI_Alltoallv(const void *sendbuf, const int sendcounts[], const int sdispls[], MPI_Datatype sendtype,
                         void *recvbuf, const int recvcounts[], const int rdispls[], MPI_Datatype recvtype,
                         MPI_Comm comm)
{
    count_all(comm, 0, sendcounts, sendtype, NULL);
    return PMPI_Alltoallv(sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype, comm);
}

EXPORT int MPI_Ialltoallv(const void *sendbuf, const int sendcounts[], const int sdispls[], MPI_Datatype sendtype,
                          void *recvbuf, const int recvcounts[], const int rdispls[], MPI_Datatype recvtype,
                          MPI_Comm comm, MPI_Request *request)
{
    count_all(comm, 0, sendcounts, sendtype, NULL);
    return PMPI_Ialltoallv(sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype, comm,
                           request);
}

EXPORT int MPI_Alltoallw(const void *sendbuf, const int sendcounts[], const int sdispls[],
                         const MPI_Datatype sendtypes[], void *recvbuf, const int recvcounts[], const int rdispls[],
                         const MPI_Datatype recvtypes[], MPI_Comm comm)
{
    count_all(comm, 0, sendcounts, MPI_DATATYPE_NULL, sendtypes);
    return PMPI_Alltoallw(sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes, comm);
}

EXPORT int MPI_Ialltoallw(const void *sendbuf, const int sendcounts[], const int sdispls[],
                          const MPI_Datatype sendtypes[], void *recvbuf, const int recvcounts[], const int rdispls[],
                          const MPI_Datatype recvtypes[], MPI_Comm comm, MPI_Request *request)
{
    count_all(comm, 0, sendcounts, MPI_DATATYPE_NULL, sendtypes);
    return PMPI_Ialltoallw(sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes, comm,
                           request);
}

/* --- the end ------------------------------------------------------------------------------------------------------ */

static void write_file(const char *prefix)
{
    char path[4096];
    int rank = 0;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    snprintf(path, sizeof(path), "%s.%d", prefix, rank);
    FILE *file = fopen(path, "w");
    for (int i = 0; file != NULL && i < ntallies; i++) {
        for (int dest = 0; dest < MAX_DESTS; dest++) {
            if (tallies[i].messages[dest] > 0) {
                fprintf(file, "%d %lld %lld %s\n", dest, (long long)tallies[i].bytes[dest],
                        (long long)tallies[i].messages[dest], tallies[i].name);
            }
        }
    }
    if (file == NULL || fclose(file) != 0) {
        fprintf(stderr, "pmpi_count: %s could not be written\n", path);
    }
}

EXPORT int MPI_Finalize(void)
{
    const char *prefix = getenv("PMPI_COUNT_FILE");
    if (prefix != NULL) {
        write_file(prefix);
    }
    return PMPI_Finalize();
}
