/* Host memory that a device copies. Images that copies of a stream still read, where the device does not say until
 * when: plans end, their images do not; the emulator ends a program that gives up memory which is copied. And memory
 * that is registered, but elsewhere for the device. */
#include "on_device.h"

#include <pthread.h>
#include <unistd.h>

enum { DEADLINE_MS = 100, MOST_CALLS = 5 };

typedef struct held {
    heddle_comm *comm;
    device_fixture f;
    device_sim sim;
    heddle_stream stream;
} held;

/* All that dst needs but its copy from the host, which the stream does not come to. */
static void start_held(held *h)
{
    *h = (held){.comm = alone()};
    HD_OK(device_sim_get(&h->sim));
    HD_OK(device_set_up(&h->f, h->comm, DEADLINE_MS));
    HD_OK(hd_comm_device(h->comm)->library->stream_create(&h->stream, heddle_comm_device(h->comm)));
    device_fill(&h->f, 1);
    HD_OK(device_copy(h->comm, h->f.src, h->f.sent, sizeof h->f.sent, h->stream));
    HD_OK(heddle_reshard_start(h->f.reshard, h->f.src, h->f.dst, h->stream));
    h->sim.hold(h->stream);
}

/* What has nothing under way may wait for the device when it unpins its images. */
static void *release_later(void *arg)
{
    usleep(2 * DEADLINE_MS * 1000);
    ((held *)arg)->sim.release();
    return NULL;
}

/* The plan ends while the copy is held; when the stream goes on, dst is as it should be, if the copy was enqueued. */
static void end_held(held *h, int is_enqueued)
{
    pthread_t later;
    assert_int_equal(pthread_create(&later, NULL, release_later, h), 0);
    heddle_reshard_destroy(h->f.reshard);
    h->f.reshard = NULL;
    pthread_join(later, NULL);
    if (is_enqueued) {
        HD_OK(device_copy(h->comm, h->f.got, h->f.dst, sizeof h->f.got, h->stream));
        HD_OK(device_settle(h->comm, h->stream));
        HD_OK(check_got(&h->f, 1));
    } else {
        HD_OK(device_settle(h->comm, h->stream));
    }
    device_tear_down(&h->f);
    device_stream_free(&h->sim, h->stream);
    heddle_comm_destroy(h->comm);
}

static heddle_status go_on(held *h, int way)
{
    int done = 1;
    heddle_status st = way == 0   ? heddle_reshard_test(h->f.reshard, &done)
                       : way == 1 ? heddle_reshard_wait(h->f.reshard)
                                  : heddle_reshard_wait_on(h->f.reshard, HEDDLE_NO_STREAM);
    assert_true(way != 0 || !done || st != HEDDLE_OK);
    return st;
}

/* Whichever call fails, the copy, the record or a question, and whoever asks. */
HD_CASE(each_call_fails_while_the_copy_is_held)
{
    int lost = 0;
    hd_leaves("images that may still be read are left to the process");
    for (int way = 0; way < 3; way++) {
        for (int n = 1; n <= MOST_CALLS; n++) {
            held h;
            start_held(&h);
            h.sim.fail_at(n, 999);
            heddle_status st = go_on(&h, way);
            h.sim.fail_at(0, 0);
            const int is_enqueued = st != HEDDLE_ERR_DEVICE || says("cudaEvent") || says("cudaStreamWaitEvent");
            const int is_lost = st != HEDDLE_OK && says("cudaEventRecord");
            assert_true(st == HEDDLE_OK || st == HEDDLE_ERR_TIMEOUT || st == HEDDLE_ERR_DEVICE);
            if (is_lost) { /* and says so */
                HD_FAILS(HEDDLE_ERR_DEVICE, heddle_reshard_wait(h.f.reshard));
                assert_true(says("rank 0: no event could be recorded on device cuda:1 behind the copies of a reshard"));
                HD_FAILS(HEDDLE_ERR_DEVICE, go_on(&h, way));
                HD_FAILS(HEDDLE_ERR_DEVICE, heddle_reshard_execute(h.f.reshard, h.f.src, h.f.dst, h.stream));
            }
            lost += is_lost;
            end_held(&h, is_enqueued);
        }
    }
    assert_true(lost >= 3);
}

/* --- registered memory -------------------------------------------------------------------------------------------- */

static int says_elsewhere(void)
{
    return says("device cuda:1 has other addresses for registered host memory than the host: 0x") && says(" for 0x");
}

HD_CASE(memory_that_lies_elsewhere_is_refused)
{
    static _Alignas(4096) char page[4096];
    device_sim sim;
    heddle_comm *comm = alone();
    const heddle_device *table = hd_comm_device(comm)->library;
    HD_OK(device_sim_get(&sim));
    sim.set_host_offset(1 << 20);
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, table->pin(page, sizeof page, 1));
    assert_true(says_elsewhere());
    sim.set_host_offset(0);
    HD_OK(table->pin(page, sizeof page, 1)); /* it is not registered any more */
    table->unpin(page, 1);
    heddle_comm_destroy(comm);
}

/* Copies do without, where they are as right and only slower. */
HD_CASE(copies_go_without)
{
    device_sim sim;
    device_fixture f;
    heddle_comm *comm = alone();
    heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
    HD_OK(device_sim_get(&sim));
    sim.set_host_offset(1 << 20);
    HD_OK(device_set_up(&f, comm, 0));
    HD_OK(heddle_reshard_get_info(&info, f.reshard));
    assert_non_null(strstr(info.why, "carried through pageable host memory"));
    HD_OK(three_rounds(&f));
    device_tear_down(&f);
    heddle_comm_destroy(comm);
}

/* Kernels have the host's address of what they report to: no plan is made, and one is where it can be. */
HD_CASE(kernels_do_not)
{
    device_sim sim;
    device_fixture f;
    heddle_comm *comm = alone_on(HEDDLE_WIRE_PEER);
    HD_OK(device_sim_get(&sim));
    sim.set_host_offset(1 << 20);
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, device_set_up(&f, comm, 0));
    assert_true(says_elsewhere());
    device_tear_down(&f);
    sim.set_host_offset(0);
    HD_OK(device_set_up(&f, comm, 0));
    HD_OK(three_rounds(&f));
    device_tear_down(&f);
    heddle_comm_destroy(comm);
}
