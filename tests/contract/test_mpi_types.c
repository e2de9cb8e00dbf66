/* What the MPI adapter tells MPI about a message: types of any size, and the order of the messages of a pair. One
 * process that sends to itself; sizes beyond int are asked of MPI, not moved. */
#include "../../runtime/comm/transport/mpi/mpi_exchange.c"
#include "../../runtime/comm/transport/mpi/mpi_giveup.c"

#include "case.h"

enum { A_GIB = 1 << 30 };

static mpi_transport transport;

static mpi_transport *self(void)
{
    int started = 0;
    MPI_Initialized(&started);
    if (!started) {
        MPI_Init(NULL, NULL);
        hd_leaves("Open MPI leaks, and its modules are unloaded");
    }
    transport = (mpi_transport){.size = 1, .tag_max = 100, .listening = MPI_REQUEST_NULL};
    MPI_Comm_dup(MPI_COMM_SELF, &transport.control);
    MPI_Comm_dup(MPI_COMM_SELF, &transport.bulk);
    MPI_Comm_set_errhandler(transport.bulk, MPI_ERRORS_RETURN);
    return &transport;
}

/* Bytes of one message as MPI counts them, and how far they reach from the first to behind the last. */
static void check_type(const heddle_message *message, int64_t bytes, int64_t reach)
{
    part p = {.type = MPI_DATATYPE_NULL};
    MPI_Count size = 0, lower = 0, extent = 0, type_lower = 0, type_extent = 0;
    HD_OK(build_type(&transport, &p, message));
    MPI_Type_size_x(p.type, &size);
    MPI_Type_get_true_extent_x(p.type, &lower, &extent);
    MPI_Type_get_extent_x(p.type, &type_lower, &type_extent);
    assert_true(size * p.count == bytes);
    assert_true(lower == 0);
    assert_true(extent + (p.count - 1) * type_extent == reach);
    if (p.made) {
        MPI_Type_free(&p.type);
    }
}

HD_CASE(sizes_beyond_int)
{
    self();
    const int64_t many = ((int64_t)5 << 30) + 7; /* 4 GiB and more, no multiple of anything */
    check_type(&(heddle_message){.run_bytes = 100}, 100, 100);
    check_type(&(heddle_message){.run_bytes = INT_MAX}, INT_MAX, INT_MAX);
    check_type(&(heddle_message){.run_bytes = (int64_t)INT_MAX + 1}, (int64_t)INT_MAX + 1, (int64_t)INT_MAX + 1);
    check_type(&(heddle_message){.run_bytes = many}, many, many);
    /* rows of one byte with a gap: more turns than int counts, as the only, the outer and the inner loop */
    check_type(&(heddle_message){.run_bytes = 1, .nloops = 1, .count = {many}, .stride_bytes = {3}}, many,
               (many - 1) * 3 + 1);
    check_type(&(heddle_message){.run_bytes = 2, .nloops = 2, .count = {many, 2}, .stride_bytes = {11, 5}}, 4 * many,
               (many - 1) * 11 + 7);
    check_type(&(heddle_message){.run_bytes = 2, .nloops = 2, .count = {3, many}, .stride_bytes = {5 * many, 5}},
               6 * many, 2 * 5 * many + (many - 1) * 5 + 2);
    /* large runs, large strides */
    check_type(&(heddle_message){.run_bytes = many, .nloops = 1, .count = {3}, .stride_bytes = {2 * many}}, 3 * many,
               5 * many);
    check_type(&(heddle_message){.run_bytes = A_GIB, .nloops = 1, .count = {5}, .stride_bytes = {A_GIB}},
               (int64_t)5 * A_GIB, (int64_t)5 * A_GIB);
}

/* Each fits one receive only, or comes out somewhere else. */
HD_CASE(messages_of_a_pair_match_in_order)
{
    mpi_transport *t = self();
    enum { EACH = 5, ROOM = 64 };
    heddle_message m[2 * EACH];
    unsigned char src[EACH * ROOM], dst[EACH * ROOM];
    void *made = NULL;
    for (int i = 0; i < EACH; i++) {
        m[i] = (heddle_message){.is_send = 1, .offset_bytes = i * ROOM, .run_bytes = 10 + i};
        m[EACH + i] = (heddle_message){.offset_bytes = i * ROOM, .run_bytes = 10 + i};
        memset(src + (size_t)i * ROOM, 1 + i, ROOM);
    }
    HD_OK(mpi_exchange_create(t, &made, m, 2 * EACH, 1));
    for (int turn = 0; turn < 2; turn++) {
        int done = 0;
        memset(dst, 0, sizeof(dst));
        HD_OK(mpi_exchange_start(t, made, src, dst));
        while (!done) {
            HD_OK(mpi_exchange_test(t, made, &done));
        }
        for (int k = 0; k < EACH * ROOM; k++) {
            assert_int_equal(dst[k], k % ROOM < 10 + k / ROOM ? 1 + k / ROOM : 0);
        }
    }
    mpi_exchange_destroy(t, made);
}

HD_CASE(a_reason_that_is_cut_says_so)
{
    mpi_transport *t = self();
    MPI_Request requests[2];
    char why[2 * MPI_WHY_BYTES];
    memset(why, 'x', sizeof why);
    why[sizeof why - 1] = '\0';
    t->note_requests = requests;
    HD_OK(mpi_abort_send(t, why));
    const char *told = t->told[MPI_NOTE_ABORT].why;
    assert_int_equal(strlen(told), MPI_WHY_BYTES - 1);
    assert_string_equal(told + MPI_WHY_BYTES - 6, "xx...");
}
